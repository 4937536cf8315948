"""Web pages over a run. There are none yet: ``dtprof report --html`` writes the page that exists."""
