"""Elastic training: a checkpoint every N steps, and when a rank is killed all start again from the newest one.

torchrun starts all ranks anew when one fails (--max-restarts), and with --nnodes MIN:MAX goes on with as many machines as there
are. A restarted attempt meets in a key space of its own (``common.setup.world``), reads the newest whole checkpoint and repeats
the steps since. Both attempts are parts of one run: steps that were repeated are of kind ``lost`` there, the time between two
attempts of kind ``restart``, steps that end with a save of kind ``checkpoint``; the metric ``lost_steps`` says how many.

A save is part of its step (--save-mode sync), or only copies the state in it and is written beside the steps that follow, by a
thread (async) or a process (process). At most N steps are lost, with a save that is still under way 2 N.

    dtprof job elastic --ranks 2 --inject kill=1:12
    dtprof job elastic --ranks 2 --checkpoint-every 4 --save-mode async --inject kill=0:10 --inject kill=1:15
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.elastic --out runs/elastic
    torchrun --nnodes 1:2 --nproc_per_node 1 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:PORT --rdzv-id ID \\
        -m dtprof_sample_jobs.elastic --out runs/elastic       # on each of two machines with a common disk
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.checkpoints import MODES, Checkpoints, found_in
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.faults import COMMON, LAB, SCALED, Faults
from dtprof_sample_jobs.common.options import check_common, check_folder, common_parser, positive, read_options, refuse
from dtprof_sample_jobs.common.setup import World, attempt, autocast, equip, make_model, train, world
from dtprof_sample_jobs.common.update import make_optimizer, make_scaler, update

asked_to_end: list[bool] = []


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("elastic", __doc__, (*COMMON, *SCALED, "kill", "checkpoint_gil"))
    add = made.add_argument
    add("--checkpoint-every", type=positive, default=5, metavar="N", help="steps from one checkpoint to the next (5)")
    add("--save-mode", choices=MODES, default="sync", help="in the step, or beside the next ones by a thread, a process (sync)")
    add("--checkpoints", metavar="FOLDER", help="where they go (RUN/checkpoints)")
    add("--resume", action="store_true", help="go on from the checkpoints that are there")
    add("--max-restarts", type=positive, default=3, metavar="N", help="how often dtprof job lets torchrun start again (3)")
    return made


def torchrun_options(args: argparse.Namespace) -> list[str]:
    """What ``dtprof job`` gives torchrun besides."""
    return ["--max-restarts", str(args.max_restarts)]


def folder_of(args: argparse.Namespace) -> Path:
    """Where the checkpoints are."""
    return Path(args.checkpoints or Path(args.out or "runs/elastic") / "checkpoints")


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    check_common(args, ranks)
    away = "a checkpoint needs them"
    refuse(args, "elastic", offload_states=away, offload_parameters=away, warm_up="a restarted job would warm up again")
    check_folder("--checkpoints", args.checkpoints)
    if os.environ.get(LAB):
        raise InputError("the lab starts ranks without torchrun, and nobody would restart them", "leave --lab out")
    if attempt() == 0 and not args.resume and found_in(folder_of(args)):
        raise InputError(f"{folder_of(args)} has checkpoints already", "give --resume, or another --out or --checkpoints")
    if args.save_mode != "async" and any(f.kind == "checkpoint_gil" for f in args.inject):
        raise InputError("--inject checkpoint_gil needs a thread that saves", "add --save-mode async")
    if len(kills := Faults(args.inject, rank=0).of("kill")) > args.max_restarts:
        raise InputError(f"{len(kills)} kills are more than --max-restarts {args.max_restarts}", "allow more restarts")


def killed(args: argparse.Namespace, me: World, step: int) -> bool:
    """Does the fault ``kill`` of this attempt fall here? The first one acts in the first attempt, and so on."""
    kills = Faults(args.inject, me.rank).of("kill")
    planted = kills[attempt()] if attempt() < len(kills) else None
    return planted is not None and (planted.where, int(planted.amount)) == (me.rank, step)


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group, from the newest checkpoint on."""
    faults = Faults(args.inject, me.rank)
    checkpoints = Checkpoints(folder_of(args), args.checkpoint_every, args.save_mode, faults.ns("checkpoint_gil"))
    model = make_model(args, me.device)
    optimizer = make_optimizer(model.parameters(), kind=args.optimizer, rate=args.lr, emulated=bool(args.emulate))
    first = checkpoints.load(model, optimizer)
    faults.plant(model.blocks)
    module = DistributedDataParallel(model)
    equip(model.blocks, optimizer, args, args.batch * me.size)
    scaler = make_scaler(args, me.device)
    data = make_data(args, me.rank, me.size, faults)
    again = checkpoints.reached + 1 - first

    def step(k: int) -> Tensor:
        if asked_to_end:
            sys.exit(128 + signal.SIGTERM)
        if k == first and attempt() > 0:
            dtprof.metric("lost_steps", again, unit="steps")
        with dtprof.annotate("data"):
            tokens = data.batch(k).to(me.device, non_blocking=True)
        with dtprof.annotate("forward"), autocast(args.precision, me.device):
            checkpoints.plan()
            loss: Tensor = module(tokens)
        if killed(args, me, k):
            os.kill(os.getpid(), signal.SIGKILL)
        with dtprof.annotate("backward"):
            scaler.scale(loss).backward()
        with dtprof.annotate("optimizer"):
            update(optimizer, model.parameters(), args.clip, scaler, faults)
        if checkpoints.due(k):
            with dtprof.annotate("checkpoint"):
                checkpoints.save(k, model, optimizer)
        checkpoints.note(k)
        return loss.detach()

    train("elastic", args, me, step, faults=faults, first=first, saves=checkpoints.due)
    checkpoints.wait()


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of one attempt of the job."""
    args = read_options(parser(), argv, check)
    # torchrun asks the survivors to end: they do so between two steps, or when their collective fails, and what they
    # recorded is written
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.append(True))
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
