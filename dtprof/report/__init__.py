"""Reports: one set of facts, drawn as JSON document, terminal text and one self-contained page."""
