"""Sparse gradients in a DDP script, with a checkpoint that resumes exactly.

torchrun --nproc-per-node 2 examples/ddp_topk.py                 # 20 steps, and save
torchrun --nproc-per-node 2 examples/ddp_topk.py --resume --steps 40

On two hosts that share the folder, the same on each of them:

torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29400 \
    examples/ddp_topk.py --folder SHARED_FOLDER
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
)
state = thinwire.attach(model, "topk", density=0.01)  # that is all
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

# The model is the same on every rank; what thinwire remembers is not.
shared, own = options.folder / "model.pt", options.folder / f"thinwire.{rank}.pt"
start = 0
if options.resume:
    saved = torch.load(shared)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    state.load_state_dict(torch.load(own))
    start = saved["step"]

for step in range(start, options.steps):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 64, generator=generator)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.6f}")

sent = state.metrics()["bytes_sent"] / max(options.steps - start, 1)
state.check_replicas()
options.folder.mkdir(exist_ok=True)
torch.save(state.state_dict(), own)
if rank == 0:
    print(f"{sent:.0f} bytes per step and worker; replicas are bit-identical")
    whole = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**whole, "step": options.steps}, shared)
dist.destroy_process_group()
