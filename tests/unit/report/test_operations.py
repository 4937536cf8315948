from dataclasses import replace

import pytest

from dtprof.report import operations as ops
from tests.unit.report import build


def plain(text):
    return text.replace("\u00a0", " ")


def test_worst_are_chosen_by_wait_and_listed_in_time():
    facts = build.eight_ranks()
    chosen = ops.select(facts.comm.operations, 3)
    assert [o.id for o in chosen.operations] == [0, 1, 7]
    assert chosen.left_out == 5
    assert chosen.sentence == "The 3 with the most waiting of 8; the other 5 are in the JSON only."
    assert "the other one is in" in ops.select(facts.comm.operations, 7).sentence
    assert ops.select(facts.comm.operations).sentence == ""


def test_twenty_at_most():
    chosen = ops.select(build.many_ranks().comm.operations)
    assert len(chosen.operations) == 20
    assert chosen.left_out == 10


def test_headings():
    operations = build.eight_ranks().comm.operations
    assert ops.select(operations).heading == "Eight operations: the waiting and the moving"
    assert ops.select(operations[:1]).heading == "One operation: the waiting and the moving"
    assert ops.select(operations * 3).heading.startswith("24 operations")


def test_wait_and_transfer_in_words():
    whole = build.eight_ranks().comm.operations[0]
    assert ops.longest_wait(whole) == (1, 7_610_000)
    assert ops.wait_sum(whole) == 26_390_000
    assert plain(ops.transfer_words(whole)) == "10 us"
    assert ops.why_unsplit(whole) == ""


def test_partial_sets_give_bounds_and_reasons():
    part = build.eight_ranks(range(3)).comm.operations[0]
    assert ops.longest_wait(part) is None
    assert ops.wait_sum(part) is None
    assert plain(ops.transfer_words(part)) == "≤ 10 us"
    assert ops.why_unsplit(part) == "3 of 8 ranks"
    assert ops.why_unsplit(replace(part, one_sided=True)) == "one-sided"
    assert ops.transfer_words(replace(part, transfer_upper_ns=None)) == "not known"


def test_of_equal_waits_the_lowest_rank_is_named():
    equal = build.operation(0, "all_reduce", "", 8, 1, 5, (7, 7, 0))
    assert ops.longest_wait(equal) == (0, 7000)


def test_sizes_say_how_far_they_are_known():
    operation = build.eight_ranks().comm.operations[0]
    assert plain(ops.size_words(operation)) == "24.6 kB"
    assert plain(ops.size_words(replace(operation, bytes_known="upper_bound"))) == "≤ 24.6 kB"
    assert ops.size_words(replace(operation, bytes_known="unknown")) == "not known"
    assert ops.size_words(replace(operation, bytes=None)) == "not known"


def test_details_name_group_step_and_capture_start_only_where_they_tell_something():
    facts = build.eight_ranks()
    first, *rest = facts.comm.operations
    assert ops.detail(first, facts) == "pooled embeddings, forward"
    other = replace(first, group="0,1,2,3", step=11, capture_start=True)
    two = replace(facts, comm=replace(facts.comm, operations=(other, *rest)))
    assert ops.detail(other, two) == "pooled embeddings, forward, ranks 0 to 3, step 11, start of the capture"
    assert ops.group_words("dp_replicate") == "group dp_replicate"


def test_above_sixteen_ranks_four_are_drawn():
    operation = build.many_ranks().comm.operations[0]
    drawn = ops.participants(operation)
    assert [word for _, word in drawn][:3] == ["shortest", "median", "longest"]
    assert 41 in [rank for rank, _ in drawn]
    assert len(ops.participants(operation, frozenset(range(64)))) == 8
    assert [r for r, _ in ops.participants(build.eight_ranks().comm.operations[0])] == list(range(8))


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("backward", "backward"),
        ("token counts#layer=blocks.1", "token counts, blocks.1"),
        ("dispatch backward#phase=backward#layer=blocks.4", "dispatch backward, blocks.4"),
        ("ProfilerStep#7", "ProfilerStep#7"),
        ("a#b=", "a"),
    ],
)
def test_tags_of_a_range_are_words(label, words):
    assert ops.label_words(label) == words
