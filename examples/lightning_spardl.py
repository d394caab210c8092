"""Sparse gradients with Lightning's Trainer: one callback.

python examples/lightning_spardl.py
python examples/lightning_spardl.py --resume checkpoint/last.ckpt --steps 40
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import thinwire
from thinwire.integrations.lightning import Thinwire

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--folder", default="checkpoint")
parser.add_argument("--resume", help="a checkpoint")
options = parser.parse_args()


class Sums(LightningModule):
    """Learns to add."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        (inputs,) = batch
        return (self.layers(inputs) - inputs.sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer that knows how long each element has waited."""
        return thinwire.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    torch.manual_seed(0)
    attached = Thinwire("spardl", density=0.01, warmup="auto")
    saving = ModelCheckpoint(options.folder, save_last=True, every_n_train_steps=10)
    trainer = Trainer(
        devices=2,
        accelerator="auto" if torch.cuda.device_count() > 1 else "cpu",
        strategy="ddp",
        max_steps=options.steps,
        logger=False,
        callbacks=[attached, saving],
    )
    data = DataLoader(TensorDataset(torch.randn(2048, 64)), batch_size=32)
    trainer.fit(Sums(), data, ckpt_path=options.resume)
    attached.state.check_replicas()
    if trainer.is_global_zero:
        print("replicas are bit-identical")
