"""Sharded data parallelism: every rank has its own batch, and a share of optimizer states, gradients and parameters.

What is sharded is the strategy's (Rajbhandari et al., ZeRO, 2020):

    zero1   optimizer states: ZeroRedundancyOptimizer over DistributedDataParallel
    zero2   gradients too: FSDP2 that keeps the gathered parameters from forward to backward
    zero3   parameters too: FSDP2 that frees a block's parameters after forward and gathers them again for backward
    hsdp    zero3 inside groups of ranks, whole copies across the groups: a mesh of replicate x shard
    fsdp1   zero3 by the older FullyShardedDataParallel

    dtprof job fsdp --ranks 2 --strategy zero2 --backward-prefetch 2
    dtprof job fsdp --ranks 2 --async-gathers --forward-prefetch 1 --wrap 2
    dtprof job fsdp --ranks 4 --strategy hsdp --replicas 2
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.fsdp --out runs/fsdp --save saved --state sharded

With ``--precision bf16`` blocks compute in bfloat16, and gradients are reduced and master weights kept in float32.
"""

import argparse
import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as read_shards
from torch.distributed.checkpoint.state_dict_saver import save as write_shards
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.emulate import Emulated
from dtprof_sample_jobs.common.faults import Faults
from dtprof_sample_jobs.common.marks import BackwardMarks
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.model import GPT
from dtprof_sample_jobs.common.options import check_common, check_folder, common_parser, positive, read_options, refuse
from dtprof_sample_jobs.common.setup import World, autocast, equip, make_model, train, world
from dtprof_sample_jobs.common.update import kind_of_optimizer, make_optimizer, make_scaler, prepare, update

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which torch itself uses there
    from torch.distributed.optim import ZeroRedundancyOptimizer

STRATEGIES = ("zero3", "zero2", "zero1", "hsdp", "fsdp1")
STATES = {
    "zero1": ("full",),
    "zero2": ("full", "sharded"),
    "zero3": ("full", "sharded"),
    "hsdp": ("full", "sharded"),
    "fsdp1": ("full", "sharded", "local"),
}


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("fsdp", __doc__)
    made.add_argument("--strategy", choices=STRATEGIES, default="zero3", help="what is sharded (zero3)")
    made.add_argument("--replicas", type=positive, default=2, help="with hsdp: copies of the model (2)")
    made.add_argument("--forward-prefetch", type=int, default=0, metavar="N", help="blocks gathered ahead in forward (0)")
    made.add_argument("--backward-prefetch", type=int, default=0, metavar="N", help="blocks gathered ahead in backward (0)")
    made.add_argument("--async-gathers", action="store_true", help="hand gathers over; on gloo nothing else overlaps them")
    made.add_argument("--wrap", type=positive, default=1, metavar="N", help="blocks that are gathered together (1)")
    made.add_argument("--accumulate", type=positive, default=1, metavar="N", help="micro-batches per step (1)")
    made.add_argument("--offload", action="store_true", help="keep parameters, gradients, optimizer states on the host")
    made.add_argument("--save", metavar="FOLDER", help="write a checkpoint in the last step")
    made.add_argument("--load", metavar="FOLDER", help="go on from a checkpoint")
    made.add_argument("--state", choices=("full", "sharded", "local"), default="full", help="form of the checkpoint (full)")
    return made


def mesh_of(args: argparse.Namespace, ranks: int) -> Mesh:
    """Axes and their sizes."""
    if args.strategy == "zero1":
        return Mesh({"dp": ranks})
    if args.strategy != "hsdp":
        return Mesh({"shard": ranks})
    return Mesh({"replicate": args.replicas, "shard": ranks // args.replicas})


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    check_common(args, ranks)
    divided = "its parameters are divided among the ranks; see --offload"
    refuse(args, "fsdp", fp8="its blocks are wrapped", offload_states=divided, offload_parameters=divided)
    if args.strategy == "hsdp" and args.replicas < 2:
        raise InputError("hsdp with 1 copy is zero3", "use --strategy zero3, or give --replicas 2 or more")
    if args.strategy == "hsdp" and ranks < 2 * args.replicas:
        raise InputError(
            f"hsdp with {args.replicas} copies of 2 or more ranks does not fit {ranks} ranks",
            f"give --ranks {2 * args.replicas}, or fewer --replicas",
        )
    mesh_of(args, ranks).check(ranks)
    if (args.save, args.load) != (None, None) and args.state not in STATES[args.strategy]:
        raise InputError(f"{args.strategy} has no {args.state} checkpoint", f"it has {', '.join(STATES[args.strategy])}")
    check_folder("--save", args.save)
    files = {"full": ["full.pt"], "sharded": [".metadata"], "local": [f"rank{rank}.pt" for rank in range(ranks)]}
    if args.load is not None and (gone := [f for f in files[args.state] if not (Path(args.load) / f).is_file()]):
        raise InputError(f"--load {args.load}: it has no {gone[0]}, as a {args.state} checkpoint has", "write one with --save")
    if args.offload and args.strategy == "zero1":
        raise InputError("zero1 cannot offload", "use zero2, zero3, hsdp or fsdp1")
    if args.offload and args.strategy == "fsdp1" and not torch.cuda.is_available():
        raise InputError("fsdp1 cannot offload without a GPU", "use zero2, zero3 or hsdp here")
    if args.strategy in ("zero1", "fsdp1") and (args.wrap > 1 or args.async_gathers):
        raise InputError(f"{args.strategy} has neither --wrap nor --async-gathers", "use zero2, zero3 or hsdp")
    if min(args.forward_prefetch, args.backward_prefetch) < 0:
        raise InputError("a number of blocks to prefetch must not be negative", "give 0 or more")


def shard(model: GPT | Emulated, args: argparse.Namespace, me: World, mesh: DeviceMesh) -> nn.Module:
    """The model under the wrapper of the strategy."""
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.precision)
    if args.strategy == "zero1":
        return DistributedDataParallel(model)
    if args.strategy == "fsdp1":
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(model.blocks[0])}),
            mixed_precision=None if low is None else MixedPrecision(low, torch.float32),
            cpu_offload=CPUOffload(args.offload),
            forward_prefetch=args.forward_prefetch > 0,
            backward_prefetch=BackwardPrefetch.BACKWARD_PRE if args.backward_prefetch else None,
            device_id=me.device,
            use_orig_params=args.state != "local",  # a LOCAL state loads into flat parameters only
        )
    policies = {
        "mesh": mesh,
        "reshard_after_forward": args.strategy != "zero2",
        "mp_policy": MixedPrecisionPolicy() if low is None else MixedPrecisionPolicy(low, torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=me.device.type == "cuda") if args.offload else OffloadPolicy(),
    }
    blocks = list(model.blocks)
    groups = [blocks[i : i + args.wrap] for i in range(0, len(blocks), args.wrap)]
    for group in groups:
        fully_shard(group if len(group) > 1 else group[0], **policies)
    units: list[Any] = [group[0] for group in groups]  # any block of a group stands for all of it
    for i, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(units[i + 1 : i + 1 + args.forward_prefetch])
        unit.set_modules_to_backward_prefetch(units[max(i - args.backward_prefetch, 0) : i][::-1])
    fully_shard(model, **policies)
    if args.async_gathers:
        made: Any = model
        made._set_unshard_async_op(True)  # torch has no public name for it
    return model


def optimizer_of(module: nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """The optimizer of the parameters, or shares of parameters, that this rank holds."""
    if args.strategy == "zero1":
        make, options = kind_of_optimizer(args.optimizer, args.lr, emulated=bool(args.emulate))
        return ZeroRedundancyOptimizer(module.parameters(), make, **options)
    return make_optimizer(module.parameters(), kind=args.optimizer, rate=args.lr, emulated=bool(args.emulate))


def accumulating(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Around forward and backward of a micro-batch: gradients are reduced, and parameters freed, with the last one only."""
    if isinstance(module, FSDPModule):
        module.set_is_last_backward(last)
        module.set_requires_gradient_sync(last)
        module.set_reshard_after_backward(last)
        return contextlib.nullcontext()
    return contextlib.nullcontext() if last else module.no_sync()  # type: ignore[operator]


def clip(module: nn.Module, norm: float) -> None:
    """Clip the gradients by the norm over all ranks' shares."""
    if isinstance(module, FullyShardedDataParallel):
        module.clip_grad_norm_(norm)
    else:
        torch.nn.utils.clip_grad_norm_(module.parameters(), norm)


def save(args: argparse.Namespace, module: nn.Module, optimizer: torch.optim.Optimizer, me: World, step: int) -> None:
    """Write a checkpoint: a file of rank 0 (full), one of every rank (local), or DCP's shards, for any number of ranks."""
    folder = Path(args.save)
    folder.mkdir(parents=True, exist_ok=True)
    if args.state == "sharded":
        states = get_state_dict(module, optimizer)
        write_shards({"model": states[0], "optimizer": states[1], "step": step}, checkpoint_id=folder)
        return
    if args.state == "local":
        with local_state(module):
            states = module.state_dict(), optimizer.state_dict()
    elif isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to=0)
        states = module.state_dict(), optimizer.state_dict() if me.rank == 0 else {}
    else:
        # on the CPU offloading would free FSDP1's parameters under its hands
        whole = StateDictOptions(full_state_dict=True, cpu_offload=me.device.type != "cpu")
        states = get_state_dict(module, optimizer, options=whole)
    if args.state == "local" or me.rank == 0:
        name = f"rank{me.rank}.pt" if args.state == "local" else "full.pt"
        torch.save({"model": states[0], "optimizer": states[1], "step": step}, folder / name)


def load(args: argparse.Namespace, module: nn.Module, optimizer: torch.optim.Optimizer, me: World) -> int:
    """Read a checkpoint of the same form; returns the step that comes next."""
    folder = Path(args.load)
    if args.state == "sharded":
        states = get_state_dict(module, optimizer)
        found: dict[str, Any] = {"model": states[0], "optimizer": states[1], "step": 0}
        read_shards(found, checkpoint_id=folder)
        set_state_dict(module, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        return int(found["step"]) + 1
    # a LOCAL state is made of ShardedTensors, which only a trusted file may bring along
    local = args.state == "local"
    found = torch.load(folder / (f"rank{me.rank}.pt" if local else "full.pt"), map_location="cpu", weights_only=not local)
    if args.state == "local" or isinstance(optimizer, ZeroRedundancyOptimizer):
        with local_state(module):
            module.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    else:
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(module, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"], options=options)
    return int(found["step"]) + 1


@contextlib.contextmanager
def local_state(module: nn.Module) -> Iterator[None]:
    """FSDP1's LOCAL state dicts: every rank's own flat share; nothing changes for other wrappers."""
    if not isinstance(module, FullyShardedDataParallel):
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # state_dict_type is the only way to a LOCAL one
        with FullyShardedDataParallel.state_dict_type(module, StateDictType.LOCAL_STATE_DICT):
            yield


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group."""
    faults, mesh = Faults(args.inject, me.rank), mesh_of(args, me.size)
    model = make_model(args, me.device)
    faults.plant(model.blocks)
    marks = BackwardMarks(model.blocks.named_children())
    module = shard(model, args, me, mesh.device_mesh(me.device.type))
    optimizer = optimizer_of(module, args)
    equip(model.blocks, optimizer, args, args.batch * args.accumulate * me.size)
    scaler = make_scaler(args, me.device)
    data = make_data(args, me.rank, me.size, faults)
    begin = load(args, module, optimizer, me) if args.load else 0
    # FSDP has a mixed precision of its own
    compute = autocast(args.precision if args.strategy == "zero1" else "fp32", me.device)

    def micro_step(number: int, microbatch: int, last: bool) -> Tensor:
        marks.microbatch = microbatch
        with dtprof.annotate("data", microbatch=microbatch):
            tokens = data.batch(number).to(me.device, non_blocking=True)
        with accumulating(module, last):
            with dtprof.annotate("forward", microbatch=microbatch), compute:
                loss: Tensor = module(tokens) / args.accumulate
            with dtprof.annotate("backward", microbatch=microbatch):
                scaler.scale(loss).backward()
                marks.close()
        return loss.detach()

    def step(k: int) -> Tensor:
        first, n = (begin + k) * args.accumulate, args.accumulate
        losses = [micro_step(first + m, m, m == n - 1) for m in range(n)]
        with dtprof.annotate("optimizer"):
            if args.clip is not None:
                prepare(optimizer, module.parameters(), scaler, faults)
                clip(module, args.clip)
            update(optimizer, module.parameters(), scaler=scaler, faults=faults, agree=True, prepared=args.clip is not None)
        if args.save and k == args.steps - 1:
            with dtprof.annotate("checkpoint"):
                save(args, module, optimizer, me, begin + k)
        return torch.stack(losses).sum()

    train("fsdp", args, me, step, mesh=mesh, faults=faults, sequences=args.batch * args.accumulate)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
