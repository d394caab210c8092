"""Sparse gradients on GPUs: NCCL, bfloat16 and AdamW; on the CPU where there is none.

torchrun --nproc-per-node 2 examples/gpu_spardl.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
options = parser.parse_args()

if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")

torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
model = DistributedDataParallel(layers)
# What is sent is packed on the GPU; the residual lies there too, in float32.
state = thinwire.attach(model, "spardl", density=0.01, warmup="auto", clip=1.0)
optimizer = thinwire.AdamW(model.parameters(), lr=1e-3, state=state)

generator = torch.Generator(device).manual_seed(dist.get_rank())
for step in range(options.steps):
    inputs = torch.randn(32, 64, device=device, generator=generator)
    with torch.autocast(device.type, torch.bfloat16):
        outputs = model(inputs)
    loss = (outputs - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0 and step % 10 == 9:
        print(f"step {step}: loss {loss.item():.6f}")

state.check_replicas()
if dist.get_rank() == 0:
    sent = state.metrics()["bytes_sent"] / options.steps
    print(f"{sent:.0f} bytes per step and worker; replicas are bit-identical")
dist.destroy_process_group()
