"""Joining what was issued with where it ran: the same pairs as the plain search, whatever is missing."""

from __future__ import annotations

import random

import pytest

from dtprof.ingest.issued import _pairs_of_a_kind, pair_up


def plain(spans, issued):
    """The definition: the first free span of the size that starts at the time of issue or later."""
    free, pairs = list(range(len(spans))), []
    for number, operation in enumerate(issued):
        created, size = operation["created_ns"], operation["bytes_in"]
        fits = [
            a
            for a in free
            if (created is None or spans[a][0] >= created) and (None in (size, spans[a][1]) or size == spans[a][1])
        ]
        if fits:
            pairs.append((fits[0], number))
            free.remove(fits[0])
    return pairs


@pytest.mark.parametrize("seed", range(200))
def test_pairs_are_those_of_the_plain_search(seed):
    rng = random.Random(seed)
    sizes = [None, 4, 8, 8, 16][: rng.randint(1, 5)]
    spans = [(start, rng.choice(sizes)) for start in sorted(rng.choices(range(40), k=rng.randint(0, 20)))]
    issued = [
        {"created_ns": rng.choice([None, rng.randint(0, 45)]), "bytes_in": rng.choice(sizes)} for _ in range(rng.randint(0, 20))
    ]
    assert pair_up(spans, issued) == plain(spans, issued)


def test_operations_that_fit_nowhere_cost_no_search_of_everything():
    spans = [(10 * i, 100) for i in range(20_000)]
    looked = []

    class Looked(list):
        def __getitem__(self, at):
            looked.append(at)
            return super().__getitem__(at)

    assert pair_up(Looked(spans), [{"created_ns": 0, "bytes_in": 99}] * 20_000) == []
    assert len(looked) < 10 * len(spans)


def test_a_checkpoint_s_thread_beside_the_training_takes_no_training_operation():
    """Rank 0 scatters a plan while it reduces: what a span is called is what it can have been issued as."""
    ops = ["all_reduce", "barrier", "all_reduce", "scatter", "barrier", "all_reduce"]
    spans = [(10 * i, None) for i in range(len(ops))]
    told = ["scatter", "all_reduce", "barrier", "reduce_scatter", "barrier", "all_reduce"]
    issued = [{"op": op, "created_ns": 10 * i - 15, "bytes_in": None} for i, op in enumerate(told)]
    pairs = dict(_pairs_of_a_kind(spans, ops, issued))
    assert {at: told[number] for at, number in pairs.items()} == {
        0: "all_reduce", 1: "barrier", 2: "reduce_scatter", 3: "scatter", 4: "barrier", 5: "all_reduce",
    }  # fmt: skip
