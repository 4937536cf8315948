"""The step graph: what waits for what in a measured step."""
