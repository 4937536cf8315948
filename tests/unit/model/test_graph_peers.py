"""To which rank a message goes, where gloo names only a place in a group, and not which group."""

import pytest

from dtprof.edits import parse_edits
from dtprof.model import on_device
from dtprof.model.graph.cpu import _ranks_of_peers
from dtprof.model.graph.graph import Builder, CyclicError, EdgeKind, NodeKind
from dtprof.run import Manifest, MemoryStore, Run
from dtprof.schema import MISSING32
from dtprof.table import Table

PP = [{"axis": "pp", "ranks": [0, 2]}, {"axis": "pp", "ranks": [1, 3]}]
ALL, TP = {"ranks": [0, 1, 2, 3]}, [{"axis": "tp", "ranks": [0, 1]}, {"axis": "tp", "ranks": [2, 3]}]


def ranks(layout, rank, peer, group=MISSING32, groups=()):
    run = Run(Manifest(world_size=4, groups=layout), MemoryStore({}), "a run", "dtprof")
    rows = [{"id": i, "name": str(i), "ranks": members, "size": len(members)} for i, members in enumerate(groups)]
    return _ranks_of_peers(run, rank, Table.from_rows("groups", rows))(peer, group)


@pytest.mark.parametrize(("rank", "peer", "other"), [(0, 1, 2), (1, 1, 3), (2, 0, 0), (3, 0, 1)])
def test_messages_of_a_pipeline_go_along_its_axis(rank, peer, other):
    assert ranks([ALL, *PP, *TP], rank, peer) == other


def test_a_group_that_is_known_is_believed():
    assert ranks([ALL, *PP, *TP], 3, 0, group=0, groups=[[2, 3]]) == 2


def test_with_no_other_group_it_is_that_of_all_ranks():
    assert ranks([ALL], 0, 3) == 3


def test_where_several_groups_could_be_meant_nothing_is_said():
    assert ranks([ALL, *TP], 0, 1) is None
    assert ranks([ALL, *PP], 0, MISSING32) is None
    assert ranks([ALL, *PP], 0, 5) is None


def test_a_graph_that_contradicts_itself_withholds_and_says_why(monkeypatch):
    def build(_run, *_):
        made = Builder()
        first, second = (made.node(NodeKind.CALL, 0, 0, row, 0, 1) for row in (0, 1))
        made.edge(first, second, 0, EdgeKind.THREAD)
        made.edge(second, first, 0, EdgeKind.MEET)
        return made.build()

    with pytest.raises(CyclicError, match="cycle through node"):
        build(None)
    run = Run(Manifest(), MemoryStore({}), "a run", "dtprof")
    monkeypatch.setattr(on_device, "build", build)
    found = on_device.predict(run, parse_edits(["ideal.rank=1"]))
    assert len(found.withheld) == 1
    assert "in a circle" in found.withheld[0]
