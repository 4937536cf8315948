"""A training loop that knows nothing of dtprof; prints every loss exactly. Runs alone or as one of several ranks.

usage: run_loop.py KIND [STEPS]
"""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KIND, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 12
torch.set_num_threads(1)
torch.manual_seed(0)
SEVERAL = int(os.environ.get("WORLD_SIZE", "1")) > 1
if SEVERAL:
    dist.init_process_group("gloo")
RANK = dist.get_rank() if SEVERAL else 0


def exactly(value):
    return value if isinstance(value, str) else float(torch.as_tensor(value).detach()).hex()


def say(*values):
    sys.stdout.write(" ".join([f"rank{RANK}", *map(exactly, values)]) + "\n")
    sys.stdout.flush()


def net(width=32):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def wrap(model):
    return DistributedDataParallel(model) if SEVERAL else model


def batch(step):
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(1000 * step + RANK))


def plain():
    model = wrap(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(loss)


def loader():
    data = torch.utils.data.DataLoader([batch(n)[0] for n in range(8 * STEPS)], batch_size=8, num_workers=2)
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for x in data:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        say(loss)


def accumulate():
    """Four batches a step, with a gradient scaler that leaves every fourth step out, whose gradients overflow."""
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    for step in range(STEPS):
        for part in range(4):
            loss = model(batch(4 * step + part)).square().mean() / 4
            if step % 4 == 1:
                loss = loss * 3e38
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        say(loss, scaler.get_scale())


def gan():
    """Two optimizers in every iteration."""
    g, d = wrap(net()), wrap(net())
    opt_g, opt_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for step in range(STEPS):
        loss_d = d(batch(step)).square().mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        loss_g = g(batch(step)).square().mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        say(loss_d, loss_g)


def uneven_gan():
    """One optimizer in every second iteration, the other three times in each."""
    g, d = wrap(net()), wrap(net())
    opt_g, opt_d = torch.optim.Adam(g.parameters()), torch.optim.SGD(d.parameters(), lr=1e-2)
    for step in range(STEPS):
        if step % 2 == 0:
            loss_d = d(batch(step)).square().mean()
            opt_d.zero_grad()
            loss_d.backward()
            opt_d.step()
        for _ in range(3):
            loss_g = g(batch(step)).square().mean()
            opt_g.zero_grad()
            loss_g.backward()
            opt_g.step()
        say(loss_d, loss_g)


def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = wrap(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(loss)


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = net(), init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say(loss)


def compiled():
    model = torch.compile(wrap(net()), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.compile(backend="aot_eager")
    def update():
        optimizer.step()

    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        loss.backward()
        if step % 2:
            optimizer.step()
        else:
            update()
        optimizer.zero_grad()
        say(loss)


def thread():
    loop = threading.Thread(target=plain)
    loop.start()
    loop.join()


globals()[KIND]()
if SEVERAL:
    dist.destroy_process_group()
say("end")
