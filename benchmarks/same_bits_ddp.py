"""Gradients of a DDP model and state dicts of what is attached, in real processes.

Called by `same_bits_capture.py`. Ranks are processes that talk over Gloo on loopback.
"""

import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 8
NONFINITE_STEP, NEW_DENSITY_STEP, LOAD_STEP = 3, 4, 5
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "topk": ("topk", {}),
    "topk model": ("topk", {"scope": "model", "feedback": "momentum"}),
    "gtopk": ("gtopk", {"sparse": "union"}),
    "gtopk model": ("gtopk", {"scope": "model", "variant": "tree", "codec": "raw"}),
    "spardl": ("spardl", {"warmup": 2, "sparse": "s2"}),
    "spardl model": ("spardl", {"scope": "model", "teams": "auto"}),
    "gs-sgd": ("gs-sgd", {}),
    "s2": ("s2", {"granularity": "block", "width": 8}),
    "cheapest": ("cheapest", {"sparse": "cheapest"}),
    "bf16": ("bf16", {}),
    "dense": ("dense", {}),
    "dense zero": ("dense", {"on_nonfinite": "zero"}),
    "min size": ("spardl", {"min_size": 20_000, "warmup": (1, 3)}),
}


class Model(nn.Module):
    """Dense gradients, or sparse ones too, in float32 and bfloat16."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(500, 16, sparse=sparse)
        self.first = nn.Linear(16, 600)
        self.second = nn.Linear(600, 60).bfloat16()
        self.third = nn.Linear(60, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(self.rows(tokens).mean(1)))
        hidden = self.second(hidden.bfloat16()).float()
        return self.third(torch.tanh(hidden))


def capture(only: str) -> dict[str, dict[str, str]]:
    """Every run on 1, 2 and 4 processes."""
    found: dict[str, dict[str, str]] = {}
    wanted = [name for name in RUNS if only in f"attach {name}"]
    for ranks in (1, 2, 4) if wanted else ():
        with TemporaryDirectory() as folder:
            mp.spawn(_rank, (ranks, _free_port(), wanted, folder), nprocs=ranks)
            for rank in range(ranks):
                seen = torch.load(Path(folder) / str(rank), weights_only=True)
                for name, values in seen.items():
                    entries = found.setdefault(f"attach {name}", {})
                    entries.update({f"P {ranks} {k}": v for k, v in values.items()})
    return found


def _rank(rank: int, ranks: int, port: int, wanted: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo"
    )
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.save({name: _run(name, rank) for name in wanted}, Path(folder) / str(rank))
    dist.destroy_process_group()


def _run(name: str, rank: int) -> dict[str, str]:
    import thinwire

    method, options = RUNS[name]
    torch.manual_seed(1)
    model = DDP(
        Model(sparse="sparse" in options),
        bucket_cap_mb=0.03,
        gradient_as_bucket_view=True,
    )
    state = thinwire.attach(model, method, **{"density": 0.05, **options})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    seen: dict[str, str] = {}
    for step in range(STEPS):
        if step == NEW_DENSITY_STEP and state.density is not None:
            state.density = 0.02
        spoiled = step == NONFINITE_STEP and rank == dist.get_world_size() - 1
        loss = _loss(model, generator) * (float("inf") if spoiled else 1.0)
        loss.backward()
        _see(seen, f"step {step} rank {rank}", model, state)
        if step != NONFINITE_STEP:
            optimizer.step()
        if step == LOAD_STEP:
            state.load_state_dict(state.state_dict())
        optimizer.zero_grad()
    _loss(model, generator).backward()
    state.flush()
    _see(seen, f"flush rank {rank}", model, state)
    return seen


def _loss(model: DDP, generator: torch.Generator) -> torch.Tensor:
    tokens = torch.randint(0, 500, (8, 5), generator=generator)
    return model(tokens).square().mean()


def _see(seen: dict[str, str], place: str, model: DDP, state: Any) -> None:
    for key, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient.is_sparse:
            gradient = gradient.coalesce().to_dense()
        seen[f"{place} grad {key}"] = _digest(gradient)
    _add(seen, f"{place} state", state.state_dict())


def _add(seen: dict[str, str], place: str, entry: Any) -> None:
    """Every leaf of a state dict under its path."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            _add(seen, f"{place} {key}", value)
    else:
        seen[place] = _digest(entry) if torch.is_tensor(entry) else repr(entry)


def _digest(tensor: torch.Tensor) -> str:
    from same_bits_capture import digest

    return digest(tensor)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
