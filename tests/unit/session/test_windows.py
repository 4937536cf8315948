"""Requests for captures: what ranks make of the same lines, whenever each of them looks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtprof.session.windows import FILE, MAX_REQUESTS, Request, Windows, append

STARTED = 1_000


def request(first, end, **changes):
    given = {"run_key": "k", "attempt": 0, "id": "a", "why": "asked", "asked_ns": STARTED + first}
    return Request(first=first, end=end, **{**given, **changes})


def windows(run, capture=(-1, -1)):
    return Windows(capture, run, "k", 0, STARTED)


def walk(seen, steps, looks=None):
    """Steps by (number) of the window in which they are traced, looking before each of ``looks`` (all)."""
    traced = {}
    for coming in range(1, steps):
        if looks is None or coming in looks:
            seen.look(coming, now=True)
        elif seen._plan:
            seen._move(coming)
        if seen.current.first <= coming < seen.current.end:
            traced.setdefault(seen.current.number, []).append(coming)
    seen.finish(steps)
    return traced


def test_windows_follow_each_other_and_the_configured_one(tmp_path):
    append(tmp_path, request(20, 23))
    append(tmp_path, request(40, 42))
    append(tmp_path, request(2, 4))
    seen = windows(tmp_path, (10, 13))
    assert walk(seen, 60) == {0: [10, 11, 12], 1: [20, 21, 22], 2: [40, 41], 3: [2, 3]}
    assert [(t["number"], t["state"], t["steps"]) for t in seen.told] == [
        (1, "done", [20, 23]),
        (2, "done", [40, 42]),
        (3, "done", [2, 4]),
    ]


def test_nothing_is_asked_and_nothing_is_done(tmp_path):
    seen = windows(tmp_path)
    assert walk(seen, 10) == {} and seen.told == []
    assert walk(windows(tmp_path, (3, 5)), 10) == {0: [3, 4]}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [((9, 11), "too near"), ((12, 14), "too near"), ((13, 15), "too near"), ((8, 9), "too near"), ((5, 5), "no step")],
)
def test_what_overlaps_or_touches_another_window_is_refused(tmp_path, asked, reason):
    append(tmp_path, request(*asked))
    seen = windows(tmp_path, (10, 12))
    assert walk(seen, 30) == {0: [10, 11]}
    assert seen.told[0]["state"] == "refused" and reason in seen.told[0]["reason"]


def test_a_rank_that_sees_it_late_captures_the_rest_and_says_so(tmp_path):
    append(tmp_path, request(10, 13))
    late, missed = windows(tmp_path), windows(tmp_path)
    assert walk(late, 30, looks={12}) == {1: [12]}
    assert (late.told[0]["state"], late.told[0]["reason"]) == ("partial", "seen before step 12 only")
    assert walk(missed, 30, looks={13}) == {}
    assert (missed.told[0]["state"], missed.told[0]["reason"]) == ("missed", "seen before step 13 only")


def test_a_loop_that_ends_first_is_told(tmp_path):
    append(tmp_path, request(10, 13))
    append(tmp_path, request(20, 23))
    seen = windows(tmp_path)
    assert walk(seen, 12) == {1: [10, 11]}
    assert [t["state"] for t in seen.told] == ["partial", "missed"]
    whole = windows(tmp_path)
    walk(whole, 13)
    assert [t["state"] for t in whole.told] == ["done", "missed"]


def test_lines_of_others_are_left_out(tmp_path):
    append(tmp_path, request(5, 7, run_key="other"))
    append(tmp_path, request(5, 7, attempt=1))
    append(tmp_path, request(5, 7, asked_ns=STARTED - 1))
    with (tmp_path / FILE).open("ab") as file:
        file.write(
            b'{"first": 5\n\xff\xfe\n[]\n{"run_key":"k","attempt":0,"id":"x","first":-1,"end":2,"why":"","asked_ns":9999}\n{"to'
        )
    append(tmp_path, request(8, 9))
    seen = windows(tmp_path)
    assert walk(seen, 20) == {1: [8]}
    assert len(seen.told) == 1


def test_of_anomalies_of_one_moment_the_first_line_counts(tmp_path):
    for asked_ns, first in ((2_000, 20), (2_100, 30), (2_000 + 10**9, 40)):
        append(tmp_path, request(first, first + 2, why="anomaly", asked_ns=asked_ns, gap_s=1.0, rank=1, step=9))
    append(tmp_path, request(50, 52))
    seen = windows(tmp_path)
    assert walk(seen, 60) == {1: [20, 21], 2: [40, 41], 3: [50, 51]}
    assert seen.told[0]["rank"] == 1 and seen.told[0]["step"] == 9


def test_a_line_is_read_once_it_is_whole_and_the_file_may_go(tmp_path):
    seen = windows(tmp_path)
    append(tmp_path, request(8, 9))
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-5])
    seen.look(1, now=True)
    assert seen.told == []
    (tmp_path / FILE).write_bytes(whole)
    seen.look(2, now=True)
    assert len(seen.told) == 1
    (tmp_path / FILE).unlink()
    seen.look(3, now=True)
    (tmp_path / FILE).write_bytes(b"")
    seen.look(4, now=True)
    append(tmp_path, request(30, 31))
    seen.look(5, now=True)
    assert [t["asked"] for t in seen.told] == [[8, 9], [30, 31]]


def test_what_is_kept_of_requests_is_bounded(tmp_path):
    for n in range(MAX_REQUESTS + 50):
        append(tmp_path, request(10 + 10 * n, 11 + 10 * n))
    seen = windows(tmp_path)
    seen.look(1, now=True)
    assert len(seen.told) == MAX_REQUESTS


spans = st.tuples(st.integers(1, 80), st.integers(0, 6)).map(lambda t: (t[0], t[0] + t[1]))


@given(
    asked=st.lists(spans, max_size=8),
    late=st.sets(st.integers(1, 100), min_size=1),
    capture=st.sampled_from([(-1, -1), (5, 8), (40, 43)]),
)
def test_ranks_that_look_at_different_times_never_disagree_on_a_step(tmp_path_factory, asked, late, capture):
    run = tmp_path_factory.mktemp("run")
    for steps in asked:
        append(run, request(*steps, asked_ns=STARTED))
    early, other = windows(run, capture), windows(run, capture)
    first, second = walk(early, 101), walk(other, 101, looks=late)
    for number, steps in second.items():
        assert number == 0 or set(steps) <= set(first[number]), "a rank captures what another one does not"
    assert first.get(0) == second.get(0) == (list(range(*capture)) if capture[0] >= 0 else None)
    accepted = [t for t in early.told if t["state"] == "done"]
    assert {t["number"]: list(range(*t["steps"])) for t in accepted} == {n: s for n, s in first.items() if n}
    for t in other.told:
        whole = t["state"] == "done"
        assert not whole or second[t["number"]] == first[t["number"]]
