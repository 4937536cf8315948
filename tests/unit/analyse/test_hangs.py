"""Hangs, from flight-recorder dumps with known truth: who never came, through groups that depend on each other."""

import pytest

import dtprof
from dtprof.advise import findings, verdict
from dtprof.analyse import study_of
from tests.unit.collectors.test_flight_recorder_files import entry, write

GROUPS = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3), "3": (1, 2)}


def dump(folder, ranks):
    """``ranks``: rank -> [(group, seq, state, more)]; members of the groups are those of GROUPS."""
    config = {name: {"name": name, "desc": f"group {name}", "ranks": str(list(found))} for name, found in GROUPS.items()}
    for rank, mine in ranks.items():
        entries = [
            entry(n, seq, state=state, group=(group, f"group {group}"), **more)
            for n, (group, seq, state, more) in enumerate(mine)
        ]
        found = {"version": "2.5", "nccl_version": "2.21.5", "pg_config": config, "pg_status": {}, "entries": entries}
        write(folder, found, rank)
    return study_of(dtprof.open_run(folder))


def done(group, seq, **more):
    return (group, seq, "completed", more)


def stays(group, seq, **more):
    return (group, seq, "started", more)


def rules(lens):
    return {f.rule: f for f in findings(lens)}


def test_the_rank_that_never_came_is_named(tmp_path):
    lens = dump(tmp_path, {r: [done("0", 1)] + ([stays("0", 2)] if r != 2 else []) for r in range(4)})
    finding = rules(lens)["hang.missing_rank"]
    assert finding.ranks == (2,)
    assert finding.severity == "high"
    assert "never entered all-reduce 2 of group 0" in finding.title and "3 ranks wait" in finding.title.replace("\xa0", " ")
    assert "last issued all-reduce 1" in finding.why
    assert finding.evidence[0].count == 4
    assert "train.py:7 in forward" in " ".join(e.text for e in finding.evidence)
    assert verdict(lens).verdict == finding.title


def test_the_cause_is_followed_through_dependent_groups(tmp_path):
    """Ranks 0 and 1 wait for rank 2 in group 0; rank 2 waits for rank 3 in group 2; rank 3 is in nothing."""
    lens = dump(
        tmp_path,
        {
            0: [done("1", 1), stays("0", 5)],
            1: [done("1", 1), stays("0", 5)],
            2: [done("0", 4), done("2", 7), stays("2", 8)],
            3: [done("0", 4), done("2", 7)],
        },
    )
    finding = rules(lens)["hang.missing_rank"]
    assert finding.ranks == (3,)
    assert "all-reduce 8 of group 2" in finding.title or "all-reduce 5 of group 0" in finding.title
    result = lens.result("hangs")
    assert {s.name for s in result.stuck} == {"group 0", "group 2"}
    assert result.in_nothing == (3,)


def test_a_rank_without_a_dump_is_named(tmp_path):
    lens = dump(tmp_path, {r: [done("0", 1), stays("0", 2)] for r in (0, 1, 3)})
    finding = rules(lens)["hang.missing_rank"]
    assert finding.ranks == (2,)
    assert "no dump" in finding.next


def test_groups_entered_in_different_orders_are_a_circle(tmp_path):
    lens = dump(
        tmp_path, {0: [done("0", 1), stays("1", 2)], 1: [done("1", 1), stays("3", 4)], 2: [done("3", 3), stays("0", 2)], 3: []}
    )
    result = lens.result("hangs")
    assert result.stuck
    lens = dump(tmp_path, {r: [] for r in (0, 3)} | {1: [stays("3", 4)], 2: [stays("2", 1), done("3", 3)]})
    assert lens.result("hangs").culprits  # a chain that ends


def test_two_ranks_that_wait_for_each_other(tmp_path):
    lens = dump(tmp_path, {1: [done("3", 1), done("0", 1), stays("3", 2)], 2: [done("3", 1), done("0", 1), stays("0", 2)]})
    result = lens.result("hangs")
    assert set(result.culprits) >= {0, 3}  # nobody has seen these two
    several = {r: [done("0", 1), stays("0", 2)] for r in (0, 3)}
    lens = dump(tmp_path, several | {1: [done("0", 1), stays("3", 2)], 2: [done("0", 1), done("3", 1), stays("0", 2)]})
    finding = rules(lens)["hang.missing_rank"]
    assert finding.ranks == (1, 2)
    assert "wait for each other" in finding.title


def test_different_operations_under_one_number_are_told(tmp_path):
    other = {"name": "nccl:all_gather"}
    lens = dump(tmp_path, {r: [done("0", 1), stays("0", 2, **(other if r == 3 else {}))] for r in range(4)})
    finding = rules(lens)["hang.mismatched"]
    assert finding.ranks == (3,)
    assert "hang.missing_rank" not in rules(lens)


def test_a_message_whose_receiver_never_asked(tmp_path):
    sends = {"name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": 3}
    lens = dump(tmp_path, {0: [done("1", 1), stays("1", 2, **sends)], 1: [done("1", 1)]})
    finding = rules(lens)["hang.missing_rank"]
    assert finding.ranks == (1,)
    assert "send 3" in finding.title


@pytest.mark.parametrize("state", ["completed", "started"])
def test_ranks_that_have_got_equally_far_hang_in_nothing(tmp_path, state):
    lens = dump(tmp_path, {r: [done("0", 1), ("0", 2, state, {})] for r in range(4)})
    assert not any(rule.startswith("hang.") for rule in rules(lens))


def test_a_trace_says_nothing_of_states():
    from tests.unit.shapes.build import matched
    from tests.unit.shapes.devices import gloo_cpu

    result = study_of(matched(gloo_cpu())).result("hangs")
    assert "flight recorder" in result.abstained and not result.stuck
