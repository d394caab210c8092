"""Sparse gradients between the replicas of a sharded model (HSDP), with a checkpoint.

torchrun --nproc-per-node 4 examples/hsdp.py                # 2 replicas of 2 shards
torchrun --nproc-per-node 4 examples/hsdp.py --resume --steps 40

On hosts with several GPUs, the ranks of a host have the shards of a replica:

torchrun --nnodes 2 --nproc-per-node 8 ... examples/hsdp.py --shards 8
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import thinwire

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--shards", type=int, default=2)
parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
mesh = init_device_mesh(
    device,
    (size // options.shards, options.shards),
    mesh_dim_names=("replicate", "shard"),
)

torch.manual_seed(0)  # the same replica everywhere
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh["shard"])
fully_shard(model, mesh=mesh["shard"])  # the shard dimension alone
state = thinwire.attach(model, "spardl", density=0.01, mesh=mesh)
optimizer = thinwire.AdamW(model.parameters(), lr=1e-2, state=state)


def everything() -> dict[str, Any]:
    """What a checkpoint has: torch's own, and a folder beside it."""
    return {
        "model": state_dict.get_model_state_dict(model),
        "optimizer": state_dict.get_optimizer_state_dict(model, optimizer),
    }


start = 0
if options.resume:
    saved = everything()
    dcp.load(saved, checkpoint_id=options.folder / "torch")
    state_dict.set_model_state_dict(model, saved["model"])
    state_dict.set_optimizer_state_dict(model, optimizer, saved["optimizer"])
    also = state.load(options.folder / "thinwire")
    start = also["step"] if also is not None else 0

for step in range(start, options.steps):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 64, generator=generator).to(device)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.6f}")

sent = state.metrics()["bytes_sent"] / max(options.steps - start, 1)
state.check_replicas()
if rank == 0:
    print(f"{sent:.0f} bytes per step and rank; replicas are bit-identical")
dcp.save(everything(), checkpoint_id=options.folder / "torch")
state.save(options.folder / "thinwire", {"step": options.steps})
dist.destroy_process_group()
