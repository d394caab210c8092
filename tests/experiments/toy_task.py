"""A task that trains in a second, with BatchNorm and dropout."""

from dataclasses import dataclass

import torch
from experiments.tasks.base import Recipe
from torch import nn
from torch.nn import functional

WIDTH = 24
RECIPE = Recipe(
    epochs=2,
    batch=16,
    learning_rate=0.05,
    momentum=0.9,
    nesterov=True,
    clip=5.0,
    schedule="cosine",
    warmup_epochs=0.5,
    densities=(0.2,),
)


class Net(nn.Module):
    def __init__(self, *, sparse: bool, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH, sparse=sparse)
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 5),
        )

    def forward(self, words):
        return self.body(self.table(words).sum(1))


@dataclass(frozen=True)
class ToyData:
    batch_size: int
    device: torch.device
    carrying: bool = False

    def steps(self, ranks):
        return 6

    def batch(self, *, rank, ranks, epoch, step, seed):
        place = ((seed * 100 + epoch) * 100 + step) * 100 + rank
        generator = torch.Generator().manual_seed(place)
        words = torch.randint(0, 50, (self.batch_size, 4), generator=generator)
        return words.to(self.device), (words.sum(1) % 5).to(self.device)

    def loss(self, model, batch, carry):
        words, classes = batch
        logits = model(words)
        if self.carrying:
            logits = logits if carry is None else logits + carry
            carry = logits.detach().mean(0)
        return functional.cross_entropy(logits, classes), carry

    @torch.no_grad()
    def evaluate(self, model):
        model.eval()
        words, classes = self.batch(rank=0, ranks=1, epoch=99, step=99, seed=0)
        loss = functional.cross_entropy(model(words), classes).item()
        model.train()
        return loss

    def final(self, model):
        return {}


@dataclass(frozen=True)
class Toy:
    sparse: bool = False
    dropout: float = 0.25
    carrying: bool = False
    recipe: Recipe = RECIPE
    name = "toy"
    metric = "held-out loss"
    higher_is_better = False

    def model(self):
        return Net(sparse=self.sparse, dropout=self.dropout)

    def data(self, device):
        return ToyData(self.recipe.batch, device, self.carrying)


def in_process(group, task, spec, limits=None):
    """One rank of a run in a worker pool: its result and parameters."""
    from experiments.train import run

    return run.run_processes(
        task, spec, device=torch.device("cpu"), limits=limits or run.Limits()
    )


def in_hurried_process(group, task, spec):
    """The same, where only the other ranks think that time is up."""
    from experiments.train import run

    until = float("inf") if group.rank == 0 else 0.0
    return in_process(group, task, spec, run.Limits(until=until))
