"""The property that matters: whatever breaks in a file, every event that was not touched is there, and exact."""

from __future__ import annotations

import gzip
import random

import pytest

from tests.unit.ingest.scan_damage import MUTATIONS, Damaged, damaged, missing_from
from tests.unit.ingest.scan_lab import ENGINES, LAYOUTS, generated, of_file, scan, whole

QUICK, THOROUGH = 1200, 12000


def chunk_sizes(rng):
    """Whole, or cut everywhere, in tiny and in uneven pieces."""
    return rng.choice([None, [1], [rng.randrange(1, 300) for _ in range(40)] + [rng.randrange(40, 3000)]])


def check(doc: Damaged, rng: random.Random, seed: int) -> None:
    text, sizes = doc.text, chunk_sizes(rng)
    seen = []
    for engine in ENGINES:
        trace = scan(text, engine, sizes)
        assert missing_from(trace, doc.intact()) == [], f"seed {seed}, {engine}: {doc.edits}"
        assert len(trace.ts) <= trace.events_total
        seen.append(whole(trace))
    assert seen[0] == seen[-1], f"seed {seed}: the scanners differ on {doc.edits}"


def check_generated(seeds) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        count = rng.choice([2, 5, 12, 40])
        doc = generated(rng, count, bare=rng.random() < 0.3, tail=rng.random() < 0.7)
        check(damaged(doc, rng, rng.choice([1, 1, 1, 2, 5])), rng, seed)


def real_documents(truth):
    names = ("a100_rank0of2_collective_args_ns", "h100_qwen_0.5b", "mi250_small_train", "vllm_cuda_graph_execution")
    return [of_file(gzip.decompress((truth / "traces" / "kineto" / f"{n}.json.gz").read_bytes()), 25) for n in names]


def test_mutated_traces_keep_every_intact_event():
    check_generated(range(QUICK))


@pytest.mark.slow
def test_mutated_traces_keep_every_intact_event_thousands_of_times():
    check_generated(range(QUICK, QUICK + THOROUGH))


def test_mutated_real_traces_keep_every_intact_event(truth):
    documents = real_documents(truth)
    for seed in range(QUICK // 4):
        rng = random.Random(seed)
        check(damaged(rng.choice(documents), rng, rng.choice([1, 2, 4])), rng, seed)


@pytest.mark.slow
def test_mutated_real_traces_keep_every_intact_event_thousands_of_times(truth):
    documents = real_documents(truth)
    for seed in range(QUICK, QUICK + THOROUGH // 3):
        rng = random.Random(seed)
        check(damaged(rng.choice(documents), rng, rng.choice([1, 2, 4])), rng, seed)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_kind_of_damage_in_each_layout(mutation, layout):
    for seed in range(4):
        rng = random.Random(seed)
        doc = generated(rng, 8, layout)
        check(Damaged(doc, [mutation(doc, rng)]), rng, seed)


def test_the_check_itself_notices_a_lost_event():
    rng = random.Random(1)
    doc = generated(rng, 8, "kineto")
    start, end, _ = next(e for e in doc.events if e[2])
    without = Damaged(doc, [(start, end, b'{"ph":"Z"}')])
    trace = scan(without.text, ENGINES[0])
    assert len(missing_from(trace, [r for _, _, r in doc.events if r])) == 1
