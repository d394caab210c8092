"""Small models and training loops that run on every rank of a worker pool."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire

WIDTH = 32


def make_model(kind: str = "plain") -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]()


class Branches(nn.Module):
    """Two branches; which of them a batch uses is the caller's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, 8)
        self.right = nn.Linear(WIDTH, 8)
        self.take = "both"

    def forward(self, x):
        if self.take == "left":
            return self.left(x)
        if self.take == "right":
            return self.right(x)
        return self.left(x) + self.right(x)


class Mixed(nn.Module):
    """Parameters in float32, bfloat16 and float16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.third = nn.Linear(WIDTH, 8, dtype=torch.float16)

    def forward(self, x):
        return self.third(self.second(self.first(x).bfloat16()).half()).float()


class Tied(nn.Module):
    """One weight used twice, a frozen layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.decode = nn.Linear(WIDTH, WIDTH)
        self.decode.weight = self.encode.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.decode(self.frozen(self.encode(x)).relu())


class Words(nn.Module):
    """An embedding with sparse gradients before a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, WIDTH, sparse=True)
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x):
        words = (x.abs() * 1000).long()[:, :3] % 20
        return self.out(self.table(words).sum(1))


class OnlyRows(nn.Module):
    """Nothing but an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 3, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 1000).long()[:, :3] % 50)


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)
    )


MODELS = {
    "plain": plain,
    "branches": Branches,
    "mixed": Mixed,
    "tied": Tied,
    "words": Words,
    "rows": OnlyRows,
}


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, WIDTH, generator=generator)


def wrap(kind: str = "plain", **options) -> DDP:
    options.setdefault("bucket_cap_mb", 0.01)
    return DDP(make_model(kind), **options)


def step_once(model: DDP, optimizer, rank: int, step: int) -> float:
    optimizer.zero_grad()
    loss = model(batch(rank, step)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=0.1, momentum=0.0)


def train(
    group,
    steps: int = 5,
    *,
    kind: str = "plain",
    method: str | None = "topk",
    ddp: dict | None = None,
    joined: bool = False,
    **options,
):
    """Losses, parameters and metrics of a short run; plain DDP with method None."""
    model = wrap(kind, **(ddp or {}))
    state = None if method is None else thinwire.attach(model, method, **options)
    optimizer = optimizer_of(model)
    with model.join() if joined else nullcontext():
        losses = [
            step_once(model, optimizer, group.rank, step)
            for step in range(steps + (group.rank if joined else 0))
        ]
    if state is not None:
        state.check_replicas()
    parameters = {n: p.detach().clone() for n, p in model.module.named_parameters()}
    return losses, parameters, None if state is None else state.metrics()


SIZES = {"first": 3000, "second": 2500, "third": 700}


class Given(nn.Module):
    """A model whose gradients are given as its input: whole numbers add up exactly."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in SIZES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))

    def forward(self, gradients):
        terms = [
            (getattr(self, name) * gradients[name]).sum()
            for name in SIZES
            if name in gradients
        ]
        return sum(terms)


MODELS["given"] = Given


def given_gradients(rank: int, step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {
        name: torch.randint(-9, 10, (size,), generator=generator).float()
        for name, size in SIZES.items()
    }


def residual_of(state) -> dict[str, torch.Tensor]:
    """This rank's residuals by name, as `state_dict` gives them, copied."""
    (entries,) = [v for k, v in state.state_dict().items() if k.startswith("rank ")]
    return {name: t.clone() for name, t in entries.get("residual", {}).items()}


def gradients_of(model: DDP) -> dict[str, torch.Tensor]:
    return {
        name: None if p.grad is None else p.grad.clone()
        for name, p in model.module.named_parameters()
    }
