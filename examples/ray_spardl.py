"""Sparse gradients with Ray Train: each worker saves its own part of a checkpoint.

python examples/ray_spardl.py            # a worker that fails starts from the last save
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from ray.train.torch import TorchTrainer, get_device
from torch import nn

import thinwire


def save(state: thinwire.State, shared: dict[str, Any], loss: float) -> None:
    """Report a checkpoint: a file of each worker, and one that all share."""
    rank = ray.train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state.state_dict(), f"{folder}/thinwire.{rank}.pt")
        if rank == 0:
            torch.save(shared, f"{folder}/shared.pt")
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"loss": loss, "step": shared["step"]}, checkpoint)


def load(state: thinwire.State) -> dict[str, Any] | None:
    """Load the last checkpoint, if there is one; return what all share."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        # The files of all workers, of which there may now be another number.
        state.load(sorted(Path(folder).glob("thinwire.*.pt")))
        shared: dict[str, Any] = torch.load(f"{folder}/shared.pt")
    return shared


def train(config: dict[str, Any]) -> None:
    """Run on every worker."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    model = ray.train.torch.prepare_model(layers)
    state = thinwire.attach(model, "spardl", density=0.01, warmup="auto")
    optimizer = thinwire.AdamW(model.parameters(), lr=1e-3, state=state)
    start = 0
    if (saved := load(state)) is not None:
        layers.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]

    rank, device = ray.train.get_context().get_world_rank(), get_device()
    for step in range(start, config["steps"]):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(32, 64, generator=generator).to(device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0:
            held = {"model": layers.state_dict(), "optimizer": optimizer.state_dict()}
            save(state, {**held, "step": step + 1}, loss.item())
    state.check_replicas()


def main() -> None:
    """Start the workers, and print what they reported last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"))
    options = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": options.steps},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="spardl",
            storage_path=str(options.folder.absolute()),
            failure_config=ray.train.FailureConfig(max_failures=2),
        ),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    main()
