"""Messages between two ranks: what waits, what moves, and what cannot be told."""

import pytest

from dtprof.analyse import study_of
from dtprof.analyse.messages import messages_of
from tests.unit.kineto_maker import Trace, study
from tests.unit.shapes.build import US, PartBuilder, matched, shape


def gloo(sends, receives, *, peers=True, hosts=("a", "a")):
    """Rank 0 sends to rank 1 on CPUs; spans are (start, end) us."""
    builders = []
    for rank, op, spans in ((0, "send", sends), (1, "recv", receives)):
        made = PartBuilder(rank, rank, world_size=2, backend="gloo", host=hosts[rank])
        thread = made.thread()
        group = made.group("0", (0, 1), backend="gloo")
        for start, end in spans:
            event = made.span(thread, "comm", f"gloo:{op}", start, end, step=0)
            made.comm(event, op, group, None, 4096, peer=1 - rank if peers else None)
        made.step(0, 0, 5000)
        builders.append(made)
    return matched(shape(builders, {}, world_size=2))


SENDS = [(100, 900), (1100, 1900), (2100, 2900), (3100, 3900)]
RECEIVES = [(50, 130), (1050, 1130), (2050, 2130), (3050, 3130)]


def waits(run, part):
    return [m.wait_ns and m.wait_ns // US for m in messages_of(run)[part].values()]


def test_a_receive_waits_until_its_send_and_moves_after_it():
    run = gloo(SENDS, RECEIVES)
    assert waits(run, 1) == [50, 50, 50, 50]
    assert [m.moving_ns for m in messages_of(run)[1].values()] == [30 * US] * 4


def test_a_gloo_send_has_ended_when_its_receive_has():
    run = gloo(SENDS, RECEIVES)
    assert [(m.end - m.start) // US for m in messages_of(run)[0].values()] == [30] * 4
    account = study_of(run).result("accounting").parts[0].steps[0]
    assert account.accounting["comm_transfer_ns"] == 4 * 30 * US
    assert account.accounting["idle_host_ns"] == account.dur_ns - 4 * 30 * US


def test_clocks_that_do_not_compare_leave_the_shortest_participation():
    run = gloo(SENDS, RECEIVES, hosts=("a", "b"))
    assert waits(run, 1) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("sends", "receives", "change"),
    [(SENDS, RECEIVES, {"peers": False}), (SENDS[:1], RECEIVES[:1], {})],
    ids=["no peer", "a single message"],
)
def test_what_cannot_be_told_stays_unsplit(sends, receives, change):
    account = study_of(gloo(sends, receives, **change)).result("accounting").parts[1].steps[0]
    assert account.accounting["comm_wait_ns"] == account.accounting["comm_transfer_ns"] == account.message_wait_ns == 0
    assert account.accounting["comm_unsplit_ns"] == sum(e - s for s, e in receives) * US


def test_waiting_for_a_message_is_nobodys_lateness():
    lens = study_of(gloo(SENDS, RECEIVES))
    assert lens.result("accounting").parts[1].steps[0].message_wait_ns == 200 * US
    assert lens.result("waiting").per_step_ns == 0


def test_an_eager_send_is_no_negative_wait_and_no_link_time(tmp_path):
    """A small send ends long before its receive starts: the receiver's lateness is no communication."""
    for rank, op, starts, length in ((0, "send", 1000, 20), (1, "recv", 5000, 15)):
        t = Trace(rank, 2)
        for k in range(5):
            t.step(k, 10_000 * k, 10_000 * k + 10_000)
            t.run("gemm", 10_000 * k, 10_000 * k + 10, 10_000 * k + 500)
            at = 10_000 * k + starts
            t.run("ncclDevKernel_SendRecv", at - 5, at, at + length, stream=20, **{
                "Collective name": op, "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float", "Group size": 2,
                "Process Group Name": "pp", "Process Group Ranks": "[0, 1]", "Src Rank": 0, "Dst Rank": 1, "Rank": rank,
            })  # fmt: skip
        t.write(tmp_path / f"rank{rank}.json")
    s = study(tmp_path)
    for part in s.result("accounting").parts:
        for step in part.steps:
            assert step.message_wait_ns >= 0
            assert (
                step.accounting["comm_transfer_ns"] + step.accounting["comm_wait_ns"] + step.accounting["comm_unsplit_ns"]
                <= 20_000
            )
        assert part.part in {0, 1}
    assert {p.clock_offset_ns for p in s.run.parts} == {0}


def test_waiting_inside_an_operator_that_ends_a_little_early_is_no_computing():
    """FSDP's reduction in backward: the autograd engine's operator is stamped as ended before the one inside it."""
    made = PartBuilder(0, 0, world_size=2, backend="gloo", host="a")
    thread, worker = made.thread(), made.thread("gloo", 2, "pt_gloo_runner")
    made.span(thread, "cpu_op", "autograd::engine::evaluate_function: PostBackward", 0, 598, step=0)
    inner = made.span(thread, "cpu_op", "PostBackward", 50, 600, step=0)
    made.span(thread, "cpu_op", "c10d::_reduce_scatter_base_", 100, 110, step=0, parent=inner)
    event = made.span(worker, "comm", "gloo:all_reduce", 110, 590, step=0)
    made.comm(event, "all_reduce", made.group("0", (0, 1), backend="gloo"), 0, 4096)
    made.step(0, 0, 700)
    (step,) = study_of(matched(shape([made], {}, world_size=2))).result("accounting").parts[0].steps
    assert step.accounting["compute_ns"] == 110 * US
    assert step.accounting["comm_unsplit_ns"] == 480 * US


def test_waiting_inside_an_operator_that_exchanges_is_no_computing():
    """An autograd function of a ring asks for a message, computes 70 us beside it, waits 400 us for it, computes 100 us."""
    made = PartBuilder(0, 0, world_size=2, backend="gloo", host="a")
    thread = made.thread()
    ring = made.span(thread, "cpu_op", "_Ring", 0, 600, step=0)
    made.span(thread, "cpu_op", "aten::mm", 30, 100, step=0, parent=ring)
    event = made.span(thread, "comm", "gloo:recv", 20, 500, step=0, parent=ring)
    made.span(thread, "cpu_op", "aten::mm", 500, 600, step=0, parent=ring)
    made.comm(event, "recv", made.group("0", (0, 1), backend="gloo"), None, 4096, peer=1)
    made.step(0, 0, 700)
    (step,) = study_of(matched(shape([made], {}, world_size=2))).result("accounting").parts[0].steps
    assert step.accounting["compute_ns"] == (20 + 70 + 100) * US
    assert step.accounting["comm_unsplit_ns"] == (10 + 400) * US
    assert step.comm_hidden_ns == 70 * US
