"""Expert parallelism: each rank has its own batch and some of the experts, and every token travels to those that it chooses.

A router picks the experts of a token; an all-to-all of uneven parts takes the tokens there (dispatch), another one brings the
results back (combine); both again in backward. What is not an expert is replicated, and averaged by DDP over all ranks. With
--ep smaller than the number of ranks, several groups of ranks have all experts between them, and average theirs across the
groups. See ``common/moe.py`` for the layer itself.

    dtprof job moe --ranks 2 --experts 8 --experts-per-token 2
    dtprof job moe --ranks 4 --ep 2 --capacity-factor 1.25 --expert-us 20
    dtprof job moe --ranks 2 --expert-us 20 --inject router_skew=3:0.6
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.moe --out runs/moe --data corpus
"""

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.emulate import Emulated, EmulatedLayer
from dtprof_sample_jobs.common.faults import COMMON, SCALED, Faults
from dtprof_sample_jobs.common.marks import BackwardMarks
from dtprof_sample_jobs.common.mesh import Mesh
from dtprof_sample_jobs.common.model import GPT
from dtprof_sample_jobs.common.moe import MixtureOfExperts, RoutedBlock, RoutedLayer, Routing, Skew
from dtprof_sample_jobs.common.options import check_common, common_parser, number, positive, read_options
from dtprof_sample_jobs.common.recompute import recompute
from dtprof_sample_jobs.common.setup import World, autocast, equip, make_model, train, world
from dtprof_sample_jobs.common.update import make_optimizer, make_scaler, prepare, update


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("moe", __doc__, (*COMMON, *SCALED, "router_skew"))
    add = made.add_argument
    add("--experts", type=positive, default=8, metavar="E", help="experts of every layer (8)")
    add("--experts-per-token", type=positive, default=2, metavar="K", help="experts that a token goes to (2)")
    add("--ep", type=positive, metavar="N", help="ranks that share the experts among them (all)")
    add("--capacity-factor", type=number, metavar="C", help="an expert takes C times its even part of a batch (no limit)")
    add("--aux-weight", type=number, default=0.01, metavar="W", help="weight of the load-balancing loss (0.01)")
    add("--expert-us", type=number, default=0.0, metavar="US", help="emulated: time of an expert per token forward, us (0)")
    return made


def mesh_of(args: argparse.Namespace, ranks: int) -> Mesh:
    """Copies of the experts x ranks that share one copy."""
    ep = args.ep or ranks
    return Mesh({"dp": ranks // ep, "ep": ep})


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    check_common(args, ranks)
    ep, experts, k = args.ep or ranks, args.experts, args.experts_per_token
    if ranks % ep:
        raise InputError(f"--ep {ep} does not divide {ranks} ranks", "give a divisor of the number of ranks")
    if experts % ep:
        raise InputError(f"--experts {experts} cannot be shared evenly among {ep} ranks", f"give a multiple of {ep}")
    if k > experts:
        raise InputError(f"--experts-per-token {k} is more than --experts {experts}", f"give {experts} or less")
    if args.capacity_factor is not None and args.capacity_factor <= 0:
        raise InputError(f"--capacity-factor {args.capacity_factor} lets nothing through", "give more than 0, as 1.25")
    if args.aux_weight < 0:
        raise InputError(f"--aux-weight {args.aux_weight} would reward imbalance", "give 0 or more")
    if not 0 <= args.expert_us <= 1e6:
        raise InputError(f"--expert-us {args.expert_us} is no time per token", "give 0 to 1000000")
    for planted in Faults(args.inject, rank=0).of("router_skew"):
        if planted.where is not None and planted.where >= experts:
            raise InputError(f"--inject {planted}: there is no expert {planted.where}", f"there are {experts}, from 0")
        if k == experts:
            raise InputError(f"--inject {planted}: every token goes to all experts", "give fewer --experts-per-token")


def routing_of(args: argparse.Namespace) -> Routing:
    """What the options and faults say of the router."""
    skews = [Skew(f.where or 0, f.amount) for f in Faults(args.inject, rank=0).of("router_skew")]
    token_ns = round(args.expert_us * 1e3)
    return Routing(args.experts, args.experts_per_token, args.capacity_factor, token_ns, skews[-1] if skews else None)


class Model(nn.Module):
    """A GPT, or emulated layers, with all experts in every block; gives the loss, the weighted auxiliary losses included."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        # recomputation is of the block as it is in the end
        self.inner: GPT | Emulated = make_model(
            argparse.Namespace(**{**vars(args), "checkpointing": "none"}), torch.device("cpu")
        )
        routing = routing_of(args)
        blocks: list[nn.Module] = []
        for n, block in enumerate(self.inner.blocks):
            if isinstance(self.inner, Emulated) and isinstance(block, EmulatedLayer):
                blocks.append(RoutedLayer(block, self.inner.width, routing, f"blocks.{n}"))
            else:
                blocks.append(RoutedBlock(args.dim, args.heads, args.attention, routing, f"blocks.{n}"))
        self.inner.blocks = nn.ModuleList(blocks)
        recompute(blocks, args.checkpointing)
        self.weight = args.aux_weight

    @property
    def mixtures(self) -> list[MixtureOfExperts]:
        """The layers with experts, in order."""
        return [block.moe for block in self.inner.blocks]  # type: ignore[misc]

    def forward(self, tokens: Tensor) -> Tensor:
        """Loss of tokens (batch, sequence + 1)."""
        loss: Tensor = self.inner(tokens)
        loss = loss + self.weight * torch.stack([mixture.aux for mixture in self.mixtures]).sum()
        return loss


def wrap(model: Model, mesh: DeviceMesh) -> DistributedDataParallel:
    """Divide the experts along ep; all else is DDP's, which leaves the experts alone."""
    for mixture in model.mixtures:
        mixture.keep(mesh.get_group("ep"))
    model.to(mesh.device_type)
    theirs = [name for name, _ in model.named_parameters() if ".experts." in name]
    # DDP has no public argument for it; FSDP2 and torchrec do the same
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, theirs)
    return DistributedDataParallel(model)


def average(experts: Sequence[nn.Parameter], group: dist.ProcessGroup, ranks: int) -> None:
    """Gradients of the mean of all ranks' losses: combine has added those of the ranks of one copy, here come the copies."""
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in experts]
    if dist.get_world_size(group) > 1:
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=group)
        grads = [part.view_as(grad) for part, grad in zip(flat.split([g.numel() for g in grads]), grads, strict=True)]
    for parameter, grad in zip(experts, grads, strict=True):
        parameter.grad = grad / ranks


def clip(dense: Sequence[nn.Parameter], experts: Sequence[nn.Parameter], norm: float, group: dist.ProcessGroup) -> None:
    """Clip the gradients by the norm over all parameters, with every expert once."""
    mine = torch.nn.utils.get_total_norm([p.grad for p in experts if p.grad is not None]) ** 2
    dist.all_reduce(mine, group=group)
    both = (mine + torch.nn.utils.get_total_norm([p.grad for p in dense if p.grad is not None]) ** 2).sqrt()
    torch.nn.utils.clip_grads_with_norm_([*dense, *experts], norm, both)


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group."""
    faults, mesh = Faults(args.inject, me.rank), mesh_of(args, me.size)
    groups = mesh.device_mesh(me.device.type)
    model = Model(args)
    faults.plant(model.inner.blocks)
    marks = BackwardMarks(model.inner.blocks.named_children())
    module = wrap(model, groups)
    experts = [p for mixture in model.mixtures for p in mixture.experts.parameters()]
    owned = {id(p) for p in experts}
    dense = [p for p in model.parameters() if id(p) not in owned]
    optimizer = make_optimizer(model.parameters(), kind=args.optimizer, rate=args.lr, emulated=bool(args.emulate))
    equip(model.inner.blocks, optimizer, args, args.batch * me.size)
    scaler = make_scaler(args, me.device)
    data = make_data(args, me.rank, me.size, faults)

    def step(k: int) -> Tensor:
        with dtprof.annotate("data"):
            tokens = data.batch(k).to(me.device, non_blocking=True)
        with dtprof.annotate("forward"), autocast(args.precision, me.device):
            loss: Tensor = module(tokens)
        with dtprof.annotate("backward"):
            scaler.scale(loss).backward()
            marks.close()
            with dtprof.annotate("expert gradients"):
                average(experts, groups.get_group("dp"), me.size)
        with dtprof.annotate("optimizer"):
            if args.clip is not None:
                prepare(optimizer, model.parameters(), scaler, faults)
                clip(dense, experts, args.clip, groups.get_group("ep"))
            update(optimizer, model.parameters(), scaler=scaler, faults=faults, agree=True, prepared=args.clip is not None)
        for mixture in model.mixtures:
            mixture.record()
        return loss.detach()

    train("moe", args, me, step, mesh=mesh, faults=faults)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        run(args, me)


if __name__ == "__main__":
    main()
