"""Orders of schedules against torch's own, and the bubbles that they leave."""

import pytest

from dtprof.model.pipeline.schedules import order
from tests.jobs import bubbles

NAMES = {"gpipe": "gpipe", "interleaved": "interleaved", "zerobubble": "zero-bubble"}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("micro", [4, 8, 12])
@pytest.mark.parametrize("name", NAMES)
def test_orders_are_torch_s(name, ranks, micro):
    per_rank = 1 if name == "gpipe" else 2
    mine = order(NAMES[name], ranks, micro, per_rank)
    theirs = {
        rank: [tuple(key) for group in actions for key in group]
        for rank, actions in bubbles.order_of(name, ranks, micro).items()
    }
    assert {rank: [tuple(a) for a in actions] for rank, actions in mine.items()} == theirs


def test_1f1b_holds_no_more_than_the_stages_behind_it():
    for rank, actions in order("1f1b", 4, 8).items():
        held = most = 0
        for action in actions:
            held += 1 if action.kind == "F" else -1
            most = max(most, held)
        assert most == 4 - rank


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("1f1b", 4, 3), "needs a micro-batch"), (("interleaved", 4, 9, 2), "rounds"), (("gpipe", 1, 3), "no pipeline"),
     (("dualpipe", 2, 4), "not modelled"), (("gpipe", 2, 4, 2), "one stage per rank")],
)  # fmt: skip
def test_impossible_ones_say_why(words, reason):
    with pytest.raises(ValueError, match=reason):
        order(*words)
