"""Layers over the ranks of a pipeline."""

import pytest

from dtprof.plan.spec import Layout, Model
from dtprof.plan.stages import parted, stages


@pytest.mark.parametrize(("layers", "count"), [(32, 4), (126, 8), (61, 16), (5, 5), (3, 1)])
def test_every_layer_lies_in_one_piece_and_the_ends_have_no_more_than_others(layers: int, count: int) -> None:
    pieces = parted(layers, count)
    assert [layer for piece in pieces for layer in piece] == list(range(layers))
    lengths = list(map(len, pieces))
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == min(lengths) or lengths[0] == lengths[-1] == max(lengths)


def test_virtual_stages_go_round() -> None:
    model = Model("m", 8, 8, 2, 32, 16, 2, 4)
    first, last = stages(model, Layout(1, 1, 1, 8, pp=2, vpp=2))
    assert first.chunks == (range(2), range(4, 6))
    assert last.chunks == (range(2, 4), range(6, 8))
    assert (first.first, first.last, last.first, last.last) == (True, False, False, True)
    assert first.layers == 4
