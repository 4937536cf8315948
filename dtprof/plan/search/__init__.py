"""Which layout is fastest of those that fit: enumeration with pruning, and why each of the others loses."""

from __future__ import annotations

from dtprof.plan.search.found import Candidate, Found, Miss
from dtprof.plan.search.run import search
from dtprof.plan.search.wanted import Wanted

__all__ = ["Candidate", "Found", "Miss", "Wanted", "search"]
