"""Distinct values by hashing: several times faster than a sort of millions of numbers that are mostly the same."""

from __future__ import annotations

import numpy as np

from dtprof.ingest.nesting import Rows
from dtprof.intervals import Ints


def distinct(values: Ints) -> tuple[Ints, Rows]:
    """The distinct values, ascending, and the place of each of ``values`` among them."""
    import pyarrow as pa

    encoded = pa.array(np.asarray(values, np.int64)).dictionary_encode()
    found = encoded.dictionary.to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(found, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return found[order], place[codes]


def firsts(places: Rows, count: int) -> Ints:
    """First row of each of ``count`` distinct values, by the places that ``distinct`` gives."""
    first = np.empty(count, np.int64)
    first[places[::-1]] = np.arange(len(places) - 1, -1, -1, dtype=np.int64)
    return first


def distinct_rows(columns: Ints) -> tuple[Ints, Ints]:
    """First row of every distinct combination of values of ``columns`` (columns x rows), and the number of each row's.

    Combinations are told apart by a 64-bit hash.
    """
    mixed = np.zeros(columns.shape[1], np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(31)
    found, places = distinct(mixed.view(np.int64))
    return firsts(places, len(found)), places.astype(np.int64)
