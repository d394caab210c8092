"""Training that goes on when workers die, or come and go: from the last complete save.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 10 examples/elastic.py

With hosts that come and go, start this on each of them; they share the folder:

    torchrun --nnodes 2:4 --nproc-per-node 1 --max-restarts 10 --rdzv-id run1 \
        --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29400 examples/elastic.py

Why that variable: without it torchrun keeps one store for all restarts, and a restarted
worker may find the address of a dead one in it ("Gloo connectFullMesh failed ...
Connection refused"). With it every restart has a new store.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

BATCH = 48  # of all workers together, so that 1, 2, 3, 4 or 6 of them share it


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a step, for all workers; it depends on the step alone."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 64, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def say(text: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def train(folder: Path, steps: int, every: int, pause: float = 0.0) -> list[float]:
    """Train from the last complete save on; the losses of this worker."""
    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    )
    state = thinwire.attach(model, "topk", density=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    saved = state.load(folder, required=False)  # None: start from the beginning
    if saved is not None:
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    first = 0 if saved is None else saved["step"]
    say(f"start at step {first} with {size} workers")

    losses = []
    for step in range(first, steps):
        inputs, targets = (each[rank::size] for each in batch(step))
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        say(f"step {step}: loss {losses[-1]:.9g}")
        time.sleep(pause)
        if (step + 1) % every == 0 or step + 1 == steps:
            also = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
            }
            state.save(folder, also)
    state.check_replicas()
    inputs, targets = batch(-1)  # unseen
    with torch.no_grad():
        unseen = (model.module(inputs) - targets).square().mean().item()
    say(f"done: loss {unseen:.9g} on unseen data")
    return losses


def main() -> None:
    """Run as a worker of torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps between saves")
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per step")
    options = parser.parse_args()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        sys.exit("set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun: see above")
    dist.init_process_group("gloo")
    train(options.folder, options.steps, options.every, options.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
