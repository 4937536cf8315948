"""Web pages over a run."""
