"""Sparse gradients with Hugging Face Accelerate, in its own checkpoints.

torchrun --nproc-per-node 2 examples/accelerate_spardl.py
torchrun --nproc-per-node 2 examples/accelerate_spardl.py --resume
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn

import thinwire

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--folder", default="checkpoint")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
model = accelerator.prepare(
    nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
)
state = thinwire.attach(model, "spardl", density=0.01, warmup="auto")
optimizer = thinwire.AdamW(model.parameters(), lr=1e-3, state=state)
optimizer = accelerator.prepare(optimizer)
accelerator.register_for_checkpointing(state.all_ranks)
if options.resume:
    accelerator.load_state(options.folder)

rank = accelerator.process_index
for step in range(options.steps):
    inputs = torch.randn(32, 64, device=accelerator.device)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step}: loss {loss.item():.6f}")

accelerator.save_state(options.folder)
state.check_replicas()
accelerator.print("replicas are bit-identical")
accelerator.end_training()
