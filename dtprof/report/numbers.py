"""Moved to ``dtprof.numbers``, because rules need it too; import it from there (this module goes away)."""

from dtprof.numbers import *  # noqa: F403
