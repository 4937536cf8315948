"""Several reports of one job: ranks, hosts, clocks, containers."""

import pytest

from dtprof.errors import InputError, NotATrace
from tests.unit.ingest.nsys.maker import START, Report, losses, opened


def of_rank(pid, shift=0, **options):
    """A report of one process with two steps and one all-reduce that ends at 900."""
    report = Report(**options)
    for i in range(2):
        report.range("train_step", i * 1000, i * 1000 + 990, pid)
        report.run("gemm", i * 1000 + 10, i * 1000 + 100, i * 1000 + 500, pid)
    report.run("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1500, 1600 + shift, 1900, pid)
    return report


@pytest.mark.parametrize(
    "names",
    [
        ["report_rank0", "report_rank1", "report_rank10"],
        ["report_rank00", "report_rank01", "report_rank10"],
        ["prof.0", "prof.1", "prof.2"],
        ["gpt_r000_nodeb_900", "gpt_r001_nodea_17", "gpt_r002_nodea_400"],
        ["nsys.node12.4001.0", "nsys.node7.77.1", "nsys.node7.90.2"],
        ["job881_node3_2", "job881_node3_0", "job881_node3_1"],
    ],
)
def test_ranks_from_names_with_hosts_and_process_ids(tmp_path, names):
    import re

    for pid, name in enumerate(names, 500):
        of_rank(pid).write(tmp_path / f"{name}.sqlite")
    run = opened(tmp_path)
    expected = {}
    for pid, name in enumerate(names, 500):
        found = re.search(r"(?:rank|_r)0*(\d+)", name) or re.search(r"(\d+)$", name)
        expected[pid] = int(found[1])
    assert {p.pid: p.rank for p in run.parts} == expected
    assert {p.rank_from for p in run.parts} == {"file name"}


def test_the_environment_comes_before_the_name_and_the_contradiction_is_said(tmp_path):
    for rank in range(2):
        report = of_rank(700 + rank).environment(RANK=rank, WORLD_SIZE=2)
        report.write(tmp_path / f"report_rank{1 - rank}.sqlite")
    run = opened(tmp_path)
    assert {p.pid: (p.rank, p.rank_from, p.world_size) for p in run.parts} == {700: (0, "RANK", 2), 701: (1, "RANK", 2)}
    assert ("is rank 0 by RANK, rank 1 by its name", "RANK is taken") in losses(run)


def test_names_without_a_rank_are_numbered_and_that_is_said(tmp_path):
    for pid, name in ((500, "left"), (501, "right")):
        of_rank(pid).write(tmp_path / f"{name}.sqlite")
    run = opened(tmp_path)
    assert [(p.rank, p.source, p.rank_from) for p in run.parts] == [
        (0, "left.sqlite", "order of reports"), (1, "right.sqlite", "order of reports")
    ]  # fmt: skip
    assert sum("no rank is recorded" in what for what, _ in losses(run)) == 2


def test_two_reports_that_share_a_rank_are_attempts(tmp_path):
    of_rank(500).write(tmp_path / "first_rank0.sqlite")
    of_rank(501, start=START + 10**9).write(tmp_path / "second_rank0.sqlite")
    run = opened(tmp_path)
    assert [(p.rank, p.attempt) for p in run.parts] == [(0, 0), (0, 1)]


def test_two_nodes_with_two_processes_each(tmp_path):
    for node in range(2):
        report = Report(host=f"n{node}")
        for device in range(2):
            pid = 900 - device
            report.range("train_step", 0, 990, pid).run("gemm", 10, 100, 500, pid, device=device)
        report.write(tmp_path / f"report_node{node}.sqlite")
    run = opened(tmp_path)
    assert [(p.rank, p.host, p.pid) for p in run.parts] == [(0, "n0", 900), (1, "n0", 899), (2, "n1", 900), (3, "n1", 899)]
    lanes = [run.table("lanes", p.ordinal)["device"].max() for p in run.parts]
    assert lanes == [0, 1, 0, 1]


def test_a_command_line_states_the_world(tmp_path):
    report = of_rank(500)
    words = ["torchrun", "--nnodes=2", "--nproc-per-node", "4", "train.py"]
    for i, word in enumerate(words):
        report.add("META_DATA_CAPTURE", name="PROCESS_0:COMMAND" if i == 0 else f"PROCESS_0:ARGUMENT_{i - 1}", value=word)
    assert opened(report.write(tmp_path / "x_rank5.sqlite")).world_size == 8


def test_session_starts_put_ranks_on_one_clock(tmp_path):
    of_rank(500).write(tmp_path / "r_rank0.sqlite")
    of_rank(501, shift=100, start=START + 7000).write(tmp_path / "r_rank1.sqlite")
    run = opened(tmp_path)
    first = [int(run.table("steps", p.ordinal)["host_ts"][0]) for p in run.parts]
    assert first == [START, START + 7000]


def test_hosts_whose_clocks_differ_are_aligned_by_their_operations(tmp_path):
    for rank, start in ((0, START), (1, START + 5_000_000)):
        report = Report(start, host=f"n{rank}")
        for i in range(6):
            report.range("train_step", i * 10_000, i * 10_000 + 9900, 500)
            report.run("ncclDevKernel_AllReduce_Sum_f32_RING_LL", i * 10_000 + 10, i * 10_000 + 500, i * 10_000 + 900, 500)
        report.write(tmp_path / f"r_rank{rank}.sqlite")
    run = opened(tmp_path)
    assert set(run.table("collectives")["end_skew"].tolist()) == {0}
    assert [p.clock_offset_ns for p in run.parts] == [0, -5_000_000]


def test_normalized_times_are_unix_times_already(tmp_path):
    report = Report(START)
    report.range("train_step", START + 5, START + 900).run("gemm", START + 10, START + 100, START + 500)
    assert opened(report.write(tmp_path / "x.sqlite")).table("steps", 0)["host_ts"].tolist() == [START + 5]


def test_a_list_of_reports_is_one_run(tmp_path):
    import dtprof

    paths = [of_rank(500 + r).write(tmp_path / f"r_rank{r}.sqlite") for r in range(3)]
    run = dtprof.open_run(paths[:2], cache=False)
    assert run.ranks == [0, 1]
    with pytest.raises(InputError, match="no such file"):
        dtprof.open_run([tmp_path / "none.sqlite"])
    (tmp_path / "x.txt").write_text("no")
    with pytest.raises(NotATrace, match=r"x\.txt"):
        dtprof.open_run([paths[0], tmp_path / "x.txt"])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_folders_of_parquet_and_arrow_give_the_same_run(tmp_path, kind):
    for rank in range(2):
        of_rank(500 + rank).write(tmp_path / f"r_rank{rank}.sqlite")
    folder = tmp_path / "other"
    folder.mkdir()
    ending = "pqtdir" if kind == "parquet" else "arwdir"
    for rank in range(2):
        of_rank(500 + rank).folder(folder / f"r_rank{rank}_{ending}", kind)
        (folder / f"r_rank{rank}.nsys-rep").write_bytes(b"")
    (tmp_path / "alone").mkdir()
    databases = [tmp_path / f"r_rank{r}.sqlite" for r in range(2)]
    import dtprof

    one, two = dtprof.open_run(databases, cache=False), opened(folder)
    assert two.ranks == [0, 1]
    for name in ("events", "lanes", "kernel_args", "comm", "steps"):
        for part in (0, 1):
            a, b = one.table(name, part), two.table(name, part)
            assert [a.row(i) for i in range(len(a))] == [b.row(i) for i in range(len(b))] and len(a), name
    assert opened(folder / f"r_rank0_{ending}").table("steps", 0)["host_dur"].tolist() == [990, 990]


def test_one_report_in_several_containers_is_read_once(tmp_path):
    of_rank(500).write(tmp_path / "r_rank0.sqlite")
    of_rank(500).folder(tmp_path / "r_rank0_pqtdir")
    (tmp_path / "r_rank0.nsys-rep").write_bytes(b"")
    run = opened(tmp_path)
    assert [p.source for p in run.parts] == ["r_rank0.sqlite"]
