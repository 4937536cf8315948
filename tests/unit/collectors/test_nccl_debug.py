"""Logs of NCCL_DEBUG=INFO: four ranks on two hosts, their lines mixed, behind a launcher's prefix, and torn."""

import os
import random

import pytest

import dtprof
from dtprof.protocols import Context
from dtprof_collectors.nccl_debug import NcclDebugCollector, debug_file, parse, transport
from dtprof_collectors.nccl_debug_reader import NcclDebugReader

COMM = "0x55d0c0de000"


def lines_of(rank, via_net="NET/IB/0/GDRDMA"):
    head = f"n{rank // 2}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL INFO"
    right = (rank + 1) % 4
    way = "P2P/CUMEM/read" if rank // 2 == right // 2 else f"{via_net}"
    return [
        f"{head} Bootstrap: Using eth0:10.0.0.{rank}<0>",
        f"{head} NCCL version 2.21.5+cuda12.4",
        f"{head} NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        f"{head} Using network IB",
        f"{head} ncclCommInitRank comm {COMM}{rank} rank {rank} nranks 4 cudaDev {rank % 2} nvmlDev {rank % 2} busId 1b000 "
        "commId 0xfeed - Init START",
        f"{head} comm {COMM}{rank} rank {rank} nRanks 4 nNodes 2 localRanks 2 localRank {rank % 2} MNNVL 0",
        f"{head} Channel 00/02 :    0   1   2   3",
        f"{head} Channel 01/02 :    0   3   2   1",
        f"{head} Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
        f"{head} Channel 00/0 : {rank}[{rank % 2}] -> {right}[{right % 2}] via {way}",
        f"{head} Channel 01/0 : {rank}[{rank % 2}] -> {right}[{right % 2}] [send] via {way}",
        f"{head} Connected all rings",
        f"{head} 2 coll channels, 2 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer",
        f"{head} ncclCommInitRank comm {COMM}{rank} rank {rank} nranks 4 cudaDev 0 busId 1b000 commId 0xfeed - Init COMPLETE",
        f"{head} ncclCommSplit comm 0xabc{rank} rank {rank % 2} nranks 2 cudaDev 0 busId 1b000 parent {COMM} "
        f"color {rank // 2} key 0 commId 0xc{rank // 2} - Init COMPLETE",
    ]


def mixed(seed=1, **more):
    """The lines of all ranks in a random order that keeps each rank's own."""
    queues = [lines_of(rank, **more) for rank in range(4)]
    order = random.Random(seed)
    out = []
    while any(queues):
        queue = order.choice([q for q in queues if q])
        out.append(queue.pop(0))
    return out


def test_a_rank_is_found_among_mixed_lines():
    found = {p.rank: p for p in parse(["training starts", *mixed(), "loss 3.1"])}
    assert set(found) == {0, 1, 2, 3}
    facts = found[1].facts()
    assert facts == {
        "version": "2.21.5+cuda12.4",
        "communicators": [
            {"rank": 1, "n_ranks": 4, "id": "0xfeed", "n_nodes": 2},
            {"rank": 1, "n_ranks": 2, "id": "0xc0"},
        ],
        "channels": {"coll": 2, "collnet": 2, "nvls": 0, "p2p": 4},
        "rings": 2,
        "trees": True,
        "transports": {"NET/IB/GDRDMA": 2},
        "peers": {"2": "NET/IB/GDRDMA"},
        "network": "IB",
        "gpu_direct_rdma": True,
    }
    assert found[0].facts()["peers"] == {"1": "P2P/CUMEM"}


@pytest.mark.parametrize("prefix", ["[rank0]: ", "[default1]:", "2025-05-01 10:00:00 ", "0: "])
def test_a_launchers_prefix_does_not_matter(prefix):
    plain, prefixed = parse(mixed()), parse([prefix + line for line in mixed()])
    assert [p.facts() for p in prefixed] == [p.facts() for p in plain]


def test_two_lines_that_ran_into_one_are_both_read():
    lines = mixed()
    joined = [a + b for a, b in zip(lines[::2], lines[1::2], strict=True)]
    assert {p.rank: p.facts() for p in parse(joined)} == {p.rank: p.facts() for p in parse(lines)}


def test_torn_lines_cost_only_themselves():
    torn = [line[: 20 + i * 3] for i, line in enumerate(mixed())]
    assert {p.host for p in parse([*torn, *mixed()])} <= {"n0", "n1"}
    assert {p.rank for p in parse([*torn, *mixed()])} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("via", "way"),
    [
        ("P2P/CUMEM/read", "P2P/CUMEM"), ("P2P/IPC", "P2P/IPC"), ("P2P/direct pointer", "P2P/direct pointer"),
        ("SHM/direct/direct", "SHM/direct"), ("NET/IB/2(5)/GDRDMA/Shared", "NET/IB/GDRDMA"), ("NET/Socket/0", "NET/Socket"),
        ("NET/AWS Libfabric/1", "NET/AWS Libfabric"),
    ],
)  # fmt: skip
def test_the_way_without_numbers(via, way):
    assert transport(via) == way


def test_a_log_opens_as_a_run(tmp_path):
    (tmp_path / "train.log").write_text("\n".join(mixed()) + "\n")
    run = dtprof.open_run(tmp_path / "train.log")
    assert (run.format, run.ranks, run.world_size) == ("nccl_debug", [0, 1, 2, 3], 4)
    assert run.manifest.versions == {"nccl": "2.21.5+cuda12.4"}
    groups = {g["name"]: g["ranks"] for g in run.manifest.groups}
    assert groups == {"0xfeed": [0, 1, 2, 3], "0xc0": [0, 1], "0xc1": [2, 3]}
    assert run.parts[2].extra["nccl"]["peers"] == {"3": "P2P/CUMEM"}
    assert (run.parts[2].host, run.parts[2].pid, run.parts[2].device) == ("n1", 102, "cuda:0")
    assert run.table("quality", 0).text("what") == ["a log of NCCL's"]


def test_a_file_per_process_is_the_same(tmp_path):
    for rank in range(4):
        (tmp_path / f"nccl.n{rank // 2}.{100 + rank}").write_text("\n".join(lines_of(rank)))
    assert dtprof.open_run(tmp_path).ranks == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("via", "what"),
    [
        ("NET/Socket/0", "channels between hosts that use TCP sockets"),
        ("NET/IB/0", "InfiniBand channels without GPU Direct RDMA"),
    ],
)
def test_slow_ways_are_named(tmp_path, via, what):
    (tmp_path / "log").write_text("\n".join(mixed(via_net=via)))
    quality = dtprof.open_run(tmp_path / "log").table("quality", 1)
    assert (what, 2) in zip(quality.text("what"), quality["count"].tolist(), strict=True)


def test_warnings_are_kept_each_once(tmp_path):
    warning = "n0:100:200 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.9<1> failed : Timeout"
    (tmp_path / "log").write_text("\n".join([*mixed(), warning, warning]))
    run = dtprof.open_run(tmp_path / "log")
    quality = run.table("quality", 0)
    assert ("NCCL warns: socketStartConnect: Connect to 10.0.0.9<1> failed : Timeout", 2) in zip(
        quality.text("what"), quality["count"].tolist(), strict=True
    )
    assert run.parts[0].extra["nccl"]["warnings"] == ["socketStartConnect: Connect to 10.0.0.9<1> failed : Timeout"]


@pytest.mark.parametrize("data", [b"", b"step 1 loss 2\n", b" NCCL INFO \n", b"\x00\x01 NCCL INFO x:1:2 [0] NCCL INFO \n"])
def test_what_is_no_log_of_nccl(tmp_path, data):
    (tmp_path / "log").write_bytes(data)
    assert not NcclDebugReader().sniff(tmp_path / "log")


@pytest.mark.parametrize("said", ["rank 4 nranks 4", f"rank 0 nranks {10**12}"])
def test_a_rank_that_cannot_be_is_passed_over(said):
    (process,) = parse([f"n0:1:2 [0] NCCL INFO comm 0x1 {said} cudaDev 0"])
    assert (process.rank, process.communicators) == (None, {})


def test_where_nccl_writes(tmp_path):
    assert debug_file({}, "n0", 7) is None
    assert debug_file({"NCCL_DEBUG_FILE": "stdout"}, "n0", 7) is None
    assert str(debug_file({"NCCL_DEBUG_FILE": "/x/%h.%p"}, "n0.cluster", 7)) == "/x/n0.7"


def test_in_the_job_the_topology_becomes_facts(tmp_path, monkeypatch):
    part = tmp_path / "part00000"
    part.mkdir()
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl.%p.log"))
    collector, context = NcclDebugCollector(), Context(0, 1, part, (-1, -1), {})
    collector.start(context)
    mine = [line.replace(":100:", f":{os.getpid()}:") for line in lines_of(0, via_net="NET/Socket/0")]
    (tmp_path / f"nccl.{os.getpid()}.log").write_text("\n".join(mine))
    collector.stop()
    assert context.status.facts["peers"] == {"1": "P2P/CUMEM"}
    assert context.status.facts["channels"]["p2p"] == 4
    assert "quality" not in collector.tables(part)
