"""A small training, raw: what every framework has to repeat to the bit."""

import os
import signal
from contextlib import nullcontext
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire

STEPS, SAVED, KILLED = 50, 30, 37
WIDTH, BATCH = 32, 8


def framework(name: str, seconds: float = 180) -> list[pytest.MarkDecorator]:
    """The marks of a module that needs a framework; skipped aloud without it."""
    absent = find_spec(name) is None
    return [
        pytest.mark.frameworks,
        pytest.mark.timeout(seconds),  # two trainings, on a machine that may be busy
        pytest.mark.skipif(absent, reason=f"{name} is not installed"),
    ]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )


def batch(rank: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a rank's batch."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=generator)
    return inputs, inputs.sum(1, keepdim=True).sin()


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor):
    return (model(inputs) - targets).square().mean()


def adamw(model: nn.Module, state=None) -> torch.optim.Optimizer:
    return thinwire.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, state=state)


def sgd(model: nn.Module, state=None) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def parameters_of(model: nn.Module) -> list[torch.Tensor]:
    """In their order: frameworks add prefixes to their names."""
    return [p.detach().clone() for p in model.parameters()]


def same(found, wanted) -> bool:
    """Whether all ranks have the same bits as wanted."""
    return all(
        len(theirs) == len(ours)
        and all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
        for theirs, ours in zip(found, wanted, strict=True)
    )


def raw(
    method: str,
    optimizer_of,
    *,
    steps: int = STEPS,
    accumulate: int = 1,
    bf16: bool = False,
    find_unused: bool = False,
    **options,
) -> list[torch.Tensor]:
    """Train with DistributedDataParallel and `attach` and nothing else."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(make_model(), find_unused_parameters=find_unused)
    state = thinwire.attach(model, method, warn=False, **options)
    optimizer = optimizer_of(model, state)
    for step in range(steps):
        for micro in range(accumulate):
            last = micro + 1 == accumulate
            with nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = loss_of(model, *batch(rank, step * accumulate + micro))
                (loss / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    state.check_replicas()
    return parameters_of(model)


def die_after(step: int, done: int) -> None:
    """Rank 1 is killed after a step, unless that is 0."""
    if step and done == step and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
