"""Parameter server: workers pull parameters, push gradients, and the server applies each when it comes, over torch RPC.

Every rank is a worker with its own batch; the server lives in rank 0 beside its worker. A worker's clock is the number of its
gradients that were applied. With --mode async a worker may be at most S clocks ahead of the slowest one when it pulls, else it
waits: the stale synchronous parallel model (Ho et al., 2013), in which it sees all gradients of all workers but those of the
last S clocks. A gradient counts for one of W workers: it moves the parameters by 1/W of a step. With --mode sync the server
waits for all workers' gradients of a step and applies their mean, as data parallelism does.

The staleness of every applied gradient is recorded as metrics: ``staleness``, by how many clocks its worker was ahead of the
slowest one when it pulled (S at most), and ``staleness_updates``, how many gradients of others were applied between its pull
and its push (at most 2 S + 1 of each: one may be S behind at the pull, and S + 1 ahead before it waits).

    dtprof job parameter_server --ranks 3 --staleness 4
    dtprof job parameter_server --ranks 3 --mode sync --inject slow_rank=1:20ms
    torchrun --nproc_per_node 2 -m dtprof_sample_jobs.parameter_server --out runs/ps --emulate uniform
"""

import argparse
import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed import rpc
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.faults import Faults
from dtprof_sample_jobs.common.options import check_common, common_parser, read_options, refuse
from dtprof_sample_jobs.common.setup import World, autocast, make_model, train, world
from dtprof_sample_jobs.common.update import make_optimizer, schedule, update

SERVER = "worker0"
# a worker that does not come for so long is gone
PATIENCE_S = 120.0


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    made = common_parser("parameter_server", __doc__)
    made.add_argument("--mode", choices=("async", "sync"), default="async", help="apply gradients as they come (async)")
    made.add_argument("--staleness", type=int, default=2, metavar="S", help="async: clocks ahead of the slowest worker (2)")
    return made


def check(args: argparse.Namespace, ranks: int) -> None:
    """InputError for what cannot be run, before anything is started."""
    check_common(args, ranks)
    served = "the parameters and their optimizer are the server's"
    refuse(args, "parameter_server", fp16=served, offload_states=served, offload_parameters=served)
    if args.staleness < 0:
        raise InputError(f"--staleness {args.staleness} would have workers behind themselves", "give 0 or more")


class Server:
    """The parameters, on the host, and how far every worker is. Its methods run in RPC threads, one at a time."""

    def __init__(self, args: argparse.Namespace, workers: int) -> None:
        self.parameters = list(make_model(args, torch.device("cpu")).parameters())
        self.optimizer = make_optimizer(self.parameters, kind=args.optimizer, rate=args.lr, emulated=bool(args.emulate))
        schedule(self.optimizer, args, args.batch * (workers if args.mode == "sync" else 1))
        self.clip = args.clip
        self.sync, self.bound = args.mode == "sync", args.staleness
        self.clocks, self.updates = [0] * workers, 0
        self.gathered: list[Tensor] = []
        self.changed = threading.Condition()

    def pull(self, worker: int) -> tuple[Tensor, int, int]:
        """Parameters in one vector, the number of updates in them, the slowest worker's clock; waits for the slowest."""
        with self.changed:
            self.wait(lambda: self.clocks[worker] - min(self.clocks) <= self.bound)
            return parameters_to_vector(self.parameters).detach().clone(), self.updates, min(self.clocks)

    def push(self, worker: int, gradient: Tensor, updates: int, slowest: int) -> tuple[int, int]:
        """Apply a gradient made of parameters with so many ``updates``; its staleness in clocks and in updates."""
        with self.changed:
            staleness = self.clocks[worker] - slowest, self.updates - updates
            if not self.sync:
                self.apply(gradient / len(self.clocks))
            else:
                self.gathered.append(gradient)
                if len(self.gathered) == len(self.clocks):
                    self.apply(torch.stack(self.gathered).mean(0))
                    self.gathered.clear()
                else:
                    self.wait(lambda: self.updates > updates)
            self.clocks[worker] += 1
            self.changed.notify_all()
            return staleness

    def apply(self, gradient: Tensor) -> None:
        """One step of the optimizer."""
        for parameter, part in zip(self.parameters, gradient.split([p.numel() for p in self.parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        update(self.optimizer, self.parameters, self.clip)
        self.updates += 1
        self.changed.notify_all()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until other workers' pushes have made it so."""
        if not self.changed.wait_for(ready, PATIENCE_S):
            raise TimeoutError(f"no worker came for {PATIENCE_S:.0f} s; clocks are {self.clocks}")


# of rank 0
server: Server | None = None


def pull(worker: int) -> tuple[Tensor, int, int]:
    """What a worker asks rank 0 to run."""
    assert server is not None
    return server.pull(worker)


def push(worker: int, gradient: Tensor, updates: int, slowest: int) -> tuple[int, int]:
    """What a worker asks rank 0 to run."""
    assert server is not None
    return server.push(worker, gradient, updates, slowest)


@contextlib.contextmanager
def connected(me: World) -> Iterator[None]:
    """RPC between all ranks; at the end all wait for each other."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    if interface is not None:
        os.environ.setdefault("TP_SOCKET_IFNAME", interface)
    # each worker may be waiting in a thread of the server's while another one comes
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=me.size + 8, rpc_timeout=2 * PATIENCE_S)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using a Backend")  # torch's RPC does, not we
        rpc.init_rpc(f"worker{me.rank}", rank=me.rank, world_size=me.size, rpc_backend_options=options)
    try:
        yield
    except BaseException:
        rpc.shutdown(graceful=False)
        raise
    rpc.shutdown()


def run(args: argparse.Namespace, me: World) -> None:
    """Train inside the process group."""
    faults = Faults(args.inject, me.rank)
    model = make_model(args, me.device)
    faults.plant(model.blocks)
    parameters = list(model.parameters())
    data = make_data(args, me.rank, me.size, faults)

    def step(k: int) -> Tensor:
        with dtprof.annotate("data"):
            tokens = data.batch(k).to(me.device, non_blocking=True)
        with dtprof.annotate("pull"):
            values, updates, slowest = rpc.rpc_sync(SERVER, pull, (me.rank,))
            vector_to_parameters(values.to(me.device), parameters)
        with dtprof.annotate("forward"), autocast(args.precision, me.device):
            loss: Tensor = model(tokens)
        with dtprof.annotate("backward"):
            loss.backward()
        with dtprof.annotate("optimizer"), dtprof.annotate("push"):
            gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).cpu()
            staleness = rpc.rpc_sync(SERVER, push, (me.rank, gradient, updates, slowest))
            model.zero_grad()
        for name, unit, value in zip(("staleness", "staleness_updates"), ("clocks", "updates"), staleness, strict=True):
            dtprof.metric(name, value, unit=unit)
        return loss.detach()

    train("parameter_server", args, me, step, faults=faults)


def main(argv: Sequence[str] | None = None) -> None:
    """One rank of the job."""
    global server
    args = read_options(parser(), argv, check)
    with world(args.seed) as me:
        if me.rank == 0:
            server = Server(args, me.size)
            torch.manual_seed(args.seed)
        with connected(me):
            run(args, me)


if __name__ == "__main__":
    main()
