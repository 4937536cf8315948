"""Model: an executable picture of a measured step, what it costs to communicate, and what an edit would change."""
