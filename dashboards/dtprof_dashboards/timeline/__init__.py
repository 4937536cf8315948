"""The timeline: slices of lanes, what of them is drawn at a zoom, and the addresses that a page asks for them."""
