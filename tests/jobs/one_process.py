"""What one process computes that has all the data of a parallel job: losses and gradients to compare the job with."""

import json
from pathlib import Path

import torch

from dtprof_sample_jobs.common.data import make_data
from dtprof_sample_jobs.common.setup import make_model
from dtprof_sample_jobs.common.update import make_optimizer


def one_process(args, *, ranks, micro):
    """Every rank's losses, step by step, and the gradients before the last optimizer step.

    ``ranks`` have data of their own, and each has ``micro`` micro-batches per step; gradients are the mean over all.
    """
    torch.manual_seed(args.seed)
    model = make_model(args, torch.device("cpu"))
    optimizer = make_optimizer(model.parameters(), emulated=bool(args.emulate))
    data = [make_data(args, rank, ranks) for rank in range(ranks)]
    losses = [[] for _ in range(ranks)]
    gradients = {}
    for step in range(args.steps):
        for rank in range(ranks):
            found = []
            for m in range(micro):
                loss = model(data[rank].batch(step * micro + m))
                (loss / (ranks * micro)).backward()
                found.append(loss.item())
            losses[rank].append(sum(found) / micro)
        if args.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients


def losses_of(path, rank):
    """What --losses wrote."""
    return [float.fromhex(text) for text in json.loads(Path(f"{path}.rank{rank}").read_text())]
