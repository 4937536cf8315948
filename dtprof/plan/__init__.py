"""Which parallel layout: what fits, how fast each is, and how sure that is."""
