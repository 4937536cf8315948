"""Collective operations over sizes and groups of ranks: how fast the ranks are connected, for a cost model to be fitted.

    dtprof job collectives --ranks 2 --lab rate=1gbit,rtt=2ms
    dtprof job collectives --ranks 4 --ops all_reduce,all_gather --sizes 4K:64M:4 --groups world,halves
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.collectives --out runs/collectives

Step 0 runs every operation once on every group and checks its result. Each further step measures one thing: an operation
on one kind of group over all sizes, two all-reduces in flight (in one group, in two groups), or the links between all
ordered pairs of ranks. Then the same steps come again with fewer repetitions, traced. Groups of one kind (both halves) work
at the same time. Ranges have the operation's name; layer is "GROUP BYTES", microbatch the repetition.

RUN/calibration.jsonl gets one line per measurement: docs/jobs.md says what is in it, ``common/calibration.py`` how it is made.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import dtprof
from dtprof.errors import InputError
from dtprof.run import write_atomic
from dtprof_sample_jobs.common.calibration import UNEVEN, Entry, merge, names, one_size, sizes, table
from dtprof_sample_jobs.common.faults import check_faults, fault_option
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.options import JobParser, check_folder, positive, read_options, seed
from dtprof_sample_jobs.common.setup import World, world
from dtprof_sample_jobs.lab.spec import lab_knob

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", UNEVEN, "broadcast", "reduce", "send_recv", "barrier")
GROUPS = ("world", "halves", "pairs")
WARM_UP, TRACED = 3, 5
ELEMENT = 4  # bytes of a float32


@dataclass(frozen=True)
class Team:
    """One group as this process sees it: ``rank`` is its own rank in the group."""

    name: str
    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class Case:
    """An operation that can be issued; ``output`` equals ``expected`` after it was, once. ``size`` is S in bytes."""

    issue: Callable[[], list[Any]]
    size: int
    output: Tensor | None = None
    expected: Tensor | None = None


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = JobParser(prog="dtprof job collectives", description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False)
    add = made.add_argument
    add("--ops", type=partial(names, known=OPS), default=OPS, metavar="OP,…", help=f"of {', '.join(OPS)} (all)")
    add("--sizes", type=sizes, metavar="S,…", help="bytes, as 4K,1M or FROM:TO:FACTOR (4K:4M:4; on GPUs 4K:256M:4)")
    add("--groups", type=partial(names, known=GROUPS), metavar="G,…", help="of world, halves, pairs (those that there are)")
    add("--repeats", type=positive, default=10, help=f"measured repetitions (10), after {WARM_UP} that are not")
    add("--link-size", type=one_size, default=4 << 20, metavar="S", help="bytes that go over each link (4M)")
    add("--no-links", action="store_true", help="do not probe the links between pairs of ranks")
    add("--no-concurrent", action="store_true", help="do not measure two all-reduces in flight")
    add("--seed", type=seed, default=0, help="seed of torch (0)")
    add("--inject", type=fault_option(["slow_link"]), action="append", default=[], metavar="FAULT", help="slow_link=RANK:RATE")
    add("--out", metavar="RUN", help="folder of the run (runs/collectives; with dtprof job runs/collectives-<time>)")
    add("--capture", choices=("again", "none"), default="again", help="measure again, traced (again), or none")
    add("--no-dtprof", action="store_true", help="measure without any recording; calibration.jsonl is written")
    return made


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError where the options do not fit so many ranks."""
    check_faults(args.inject, ranks)
    check_folder("--out", args.out)
    for name in args.groups or ():
        if not blocks(name, ranks):
            raise InputError(f"--groups {name} needs an even number of ranks, 4 or more", f"here are {ranks}; leave it out")


def blocks(name: str, ranks: int) -> list[tuple[int, ...]]:
    """The groups of a kind, all of one size; none where they would be odd or the whole world again."""
    if name in ("world", "twin"):
        return [tuple(range(ranks))]
    size = {"halves": ranks // 2, "pairs": 2}[name]
    return [] if ranks < 4 or ranks % 2 else [tuple(range(a, a + size)) for a in range(0, ranks, size)]


def team_of(name: str, me: World) -> Team:
    """Make all groups of a kind, on all ranks, and return this rank's own; ``twin`` is a second group of the whole world."""
    if name == "world":
        return Team(name, blocks(name, me.size)[0], me.rank, dist.group.WORLD)
    made = [(block, dist.new_group(list(block), group_desc=name)) for block in blocks(name, me.size)]
    ranks, group = next((block, group) for block, group in made if me.rank in block)
    return Team(name, ranks, ranks.index(me.rank), group)


def build(op: str, team: Team, size: int, device: torch.device) -> Case:
    """An operation of about ``size`` bytes, with inputs from which the right result is known."""
    n, r, ranks = len(team.ranks), team.rank, team.ranks
    kw: dict[str, Any] = {"group": team.group, "async_op": True}
    unit = max(size // ELEMENT // (2 * n), 1)  # half of what one rank has for another
    count = 2 * n * unit
    sum_of_ranks = n * (n + 1) / 2

    def filled(values: Sequence[float], each: int | list[int]) -> Tensor:
        tensor, many = torch.tensor(values, device=device), torch.tensor(each, device=device)
        return tensor.float().repeat_interleave(many)

    out = torch.zeros(count, device=device)
    share = out[: count // n]
    everyone = range(n)
    match op:
        case "all_reduce":
            x, want = filled([r + 1], count), filled([sum_of_ranks], count)
            return Case(lambda: [dist.all_reduce(x, **kw)], 4 * count, x, want)
        case "all_gather":
            x, want = filled([r], count // n), filled([*everyone], count // n)
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
            return Case(lambda: [gather(out, x, **kw)], 4 * count, out, want)
        case "reduce_scatter":
            x, want = filled([(r + 1) * j for j in everyone], count // n), filled([r * sum_of_ranks], count // n)
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return Case(lambda: [scatter(share, x, **kw)], 4 * count, share, want)
        case "all_to_all":
            x, want = filled([r * n + j for j in everyone], 2 * unit), filled([i * n + r for i in everyone], 2 * unit)
            return Case(lambda: [dist.all_to_all_single(out, x, **kw)], 4 * count, out, want)
        case "all_to_all_uneven":  # the last rank gets twice as much as the others, as a popular expert does
            gives, takes = [unit] * (n - 1) + [2 * unit], [unit * (1 + (r == n - 1))] * n
            x, want = filled([r * n + j for j in everyone], gives), filled([i * n + r for i in everyone], takes)
            part = out[: sum(takes)]
            return Case(lambda: [dist.all_to_all_single(part, x, takes, gives, **kw)], 4 * count, part, want)
        case "broadcast":
            x, want = filled([7 * (r == 0)], count), filled([7], count)
            return Case(lambda: [dist.broadcast(x, ranks[0], **kw)], 4 * count, x, want)
        case "reduce":
            x, want = filled([r + 1], count), filled([sum_of_ranks], count)
            return Case(lambda: [dist.reduce(x, ranks[0], **kw)], 4 * count, x, want if r == 0 else None)
        case "send_recv":  # in a ring, as nccl-tests' sendrecv
            x, want = filled([r], count), filled([(r - 1) % n], count)
            pair = [(dist.isend, x, ranks[(r + 1) % n]), (dist.irecv, out, ranks[(r - 1) % n])]
            ring = [dist.P2POp(act, tensor, peer, team.group) for act, tensor, peer in pair]
            return Case(lambda: dist.batch_isend_irecv(ring), 4 * count, out, want)
        case _:
            return Case(lambda: [dist.barrier(**kw)], 0)


def prove(op: str, team: Team, size: int, device: torch.device) -> None:
    """Run an operation once; RuntimeError if its result is wrong."""
    case = build(op, team, size, device)
    for work in case.issue():
        work.wait()
    if case.output is not None and case.expected is not None and not torch.equal(case.output, case.expected):
        raise RuntimeError(f"{op} on {team.name} {list(team.ranks)} gave a wrong result on its rank {team.rank}")


def now(device: torch.device) -> Any:
    """A point in time: ns on the host, an event on a CUDA device."""
    if device.type != "cuda":
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any) -> int:
    """Ns between two points in time."""
    if hasattr(end, "synchronize"):
        end.synchronize()
        return round(float(begin.elapsed_time(end)) * 1e6)
    return int(end - begin)


def repeat(act: Callable[[], object], device: torch.device, name: str, layer: str, repeats: int) -> list[int]:
    """Times of ``act``, ns, after warm-up."""
    stamps = []
    for number in range(WARM_UP + repeats):
        with dtprof.annotate(name, layer=layer, microbatch=number):
            begin = now(device)
            act()
            stamps.append((begin, now(device)))
    return [between(*stamp) for stamp in stamps[WARM_UP:]]


def issue_all(cases: Sequence[Case]) -> None:
    """Issue operations together, then wait for all."""
    for work in [work for case in cases for work in case.issue()]:
        work.wait()


def collective(op: str, teams: Sequence[Team], wanted: Sequence[int], me: World, repeats: int) -> list[Entry]:
    """One step: an operation over all sizes, in each of ``teams`` at once; the same team twice is two in flight."""
    entries = []
    layer = teams[0].name + ("" if len(teams) == 1 else f" {len(teams)} in flight, {len(set(teams))} groups")
    for size in wanted if op != "barrier" else (0,):
        cases = [build(op, team, size, me.device) for team in teams]
        dist.barrier(teams[0].group)
        times = repeat(partial(issue_all, cases), me.device, op, f"{layer} {cases[0].size}", repeats)
        entry = {
            "kind": "collective", "op": op, "group": teams[0].name, "ranks": teams[0].ranks, "n": len(teams[0].ranks),
            "bytes": cases[0].size, "in_flight": len(teams), "groups": len(set(teams)), "times_ns": times,
        }  # fmt: skip
        entries.append(entry)
    return entries


def links(size: int, me: World, repeats: int) -> list[Entry]:
    """One step: every ordered pair of ranks alone. A small message there and back, then a large one and a small answer."""
    small, large = torch.zeros(2, device=me.device), torch.zeros(max(size // ELEMENT, 2), device=me.device)
    entries = []
    for source in range(me.size):
        for target in range(me.size):
            if source == target:
                continue
            times = []
            for message in (small, large):

                def there_and_back(message: Tensor = message, source: int = source, target: int = target) -> None:
                    if me.rank == source:
                        dist.send(message, target)
                        dist.recv(small, target)
                    elif me.rank == target:
                        dist.recv(message, source)
                        dist.send(small, source)

                dist.barrier()
                layer = f"{source} to {target} {message.numel() * ELEMENT}"
                times.append(repeat(there_and_back, me.device, "link", layer, repeats))
            entry = {"kind": "link", "ranks": (source, target), "bytes": large.numel() * ELEMENT}
            entries.append({**entry, "round_trip_ns": times[0], "times_ns": times[1]})
    return entries


def steps_of(args: argparse.Namespace, me: World, pairs: Sequence[tuple[str, Team]], wanted: Sequence[int]) -> list[Any]:
    """What is measured, one function of the number of repetitions for each step."""
    steps: list[Callable[[int], list[Entry]]] = [partial(collective, op, [team], wanted, me) for op, team in pairs]
    if not args.no_concurrent:
        one, two = team_of("world", me), team_of("twin", me)
        steps += [partial(collective, "all_reduce", both, wanted, me) for both in ([one, one], [one, two])]
    if not args.no_links and me.size > 1:
        steps.append(partial(links, args.link_size, me))
    return steps


def run(args: argparse.Namespace, me: World) -> None:
    """Prove, measure, measure again traced; rank 0 writes what all ranks found."""
    out, mesh = Path(args.out or "runs/collectives"), Mesh({"world": me.size})
    trace = args.capture == "again" and not args.no_dtprof
    wanted = args.sizes or sizes("4K:256M:4" if me.device.type == "cuda" else "4K:4M:4")
    teams = [team_of(name, me) for name in args.groups or [name for name in GROUPS if blocks(name, me.size)]]
    pairs = [(op, team) for op in args.ops for team in teams if len(team.ranks) > 1 or op != "send_recv"]
    steps = steps_of(args, me, pairs, wanted)
    session = dtprof.profile(
        out,
        capture=(len(steps) + 1, 2 * len(steps) + 1) if trace else None,
        job="collectives",
        knobs={**vars(args), "sizes": wanted, **lab_knob()},
        mesh=mesh.axes,
        coordinates=mesh.coordinates(),
        groups=[{"name": t.name, "ranks": b} for t in teams for b in blocks(t.name, me.size) if t.name != "world"],
    )
    mine: list[Entry] = []
    with nullcontext() if args.no_dtprof else session:
        for op, team in pairs:
            prove(op, team, wanted[0], me.device)
        dtprof.step()
        for traced in (False, True) if trace else (False,):
            for step in steps:
                mine += [{**entry, "traced": traced} for entry in step(min(args.repeats, TRACED) if traced else args.repeats)]
                dtprof.step()
    everyone: list[Any] = [None] * me.size
    dist.all_gather_object(everyone, mine)
    if me.rank == 0:
        rows = merge(everyone)
        text = "".join(json.dumps({**row, "backend": dist.get_backend()}) + "\n" for row in rows)
        write_atomic(out / "calibration.jsonl", lambda path: path.write_text(text))
        print(table(rows), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
