"""gradients.py JOB FILE OPTION…: run a sample job; its gradients before the last optimizer step go to FILE.rank0, …"""

import sys
from importlib import import_module

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

name, file, *words = sys.argv[1:]
job = import_module(f"dtprof_sample_jobs.{name}")
steps = job.parser().parse_args(words).steps
modules, outermost = [], []


def keeping(make):
    def made(*args, **kwargs):
        modules.append(make(*args, **kwargs))
        return modules[-1]

    return made


def gradients():
    for module in modules:
        yield from module.named_parameters()


def before_step(optimizer, *_):
    """Write before the last step of the outermost optimizer: ZeRO's has another one inside."""
    if not outermost:
        outermost.append([optimizer, steps])
    if outermost[0][0] is optimizer:
        outermost[0][1] -= 1
        if outermost[0][1] == 0:
            write()


def write():
    whole = [FullyShardedDataParallel.summon_full_params(m, with_grads=True) for m in modules if name == "fsdp" and fsdp1(m)]
    for context in whole:
        context.__enter__()
    found = {}
    for parameter, value in gradients():
        clean = parameter.replace("_fsdp_wrapped_module.", "").removeprefix("module.")
        grad = value.grad
        found[clean] = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).detach().clone().cpu()
    for context in whole:
        context.__exit__(None, None, None)
    torch.save(found, f"{file}.rank{dist.get_rank()}")


def fsdp1(module):
    return isinstance(module, FullyShardedDataParallel)


register_optimizer_step_pre_hook(before_step)
if name == "fsdp":
    job.shard = keeping(job.shard)
elif name == "moe":
    job.wrap = keeping(job.wrap)
elif hasattr(job, "Slice"):
    job.Slice = keeping(job.Slice)
else:
    job.make_model = keeping(job.make_model)
job.main(words)
