"""What `same_bits.py` compares: reducers, and the gradients they are given."""

from dataclasses import dataclass
from typing import Any

import torch

from thinwire import catalog
from thinwire.cost import Link
from thinwire.layout import Layout

RANKS = (1, 3, 4, 6, 8)
STEPS = 7
LINK = Link(1e-4, 1e8)
SMALL, LARGE = 5003, 200_003

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "bf16": ("bf16", {}),
    "topk": ("topk", {}),
    "topk-100%": ("topk", {"density": 1.0}),
    "topk-warmup": ("topk", {"warmup": (1, 2)}),
    "topk-min-size": ("topk", {"min_size": 10_000}),
    "gtopk-butterfly": ("gtopk", {}),
    "gtopk-tree": ("gtopk", {"variant": "tree"}),
    "gtopk-naive": ("gtopk", {"variant": "naive"}),
    "gtopk-100%": ("gtopk", {"density": 1.0}),
    "spardl": ("spardl", {}),
    "spardl-contiguous": ("spardl", {"partition": "contiguous"}),
    "spardl-100%": ("spardl", {"density": 1.0}),
    "spardl-auto": ("spardl", {"teams": "auto"}),
    "spardl-2": ("spardl", {"teams": 2}),
    "spardl-2-bruck": ("spardl", {"teams": 2, "gather": "bruck"}),
    "spardl-2-contiguous": ("spardl", {"teams": 2, "partition": "contiguous"}),
    "spardl-3": ("spardl", {"teams": 3}),
    "spardl-4": ("spardl", {"teams": 4}),
    "spardl-4-bruck": ("spardl", {"teams": 4, "gather": "bruck"}),
    "spardl-warmup": ("spardl", {"warmup": (0, 2)}),
    "spardl-link": ("spardl", {"teams": "auto", "link": LINK, "warmup": (0, 4)}),
    "gs-sgd": ("gs-sgd", {}),
    "gs-sgd-tree": ("gs-sgd", {"sum": "tree"}),
    "gs-sgd-allreduce": ("gs-sgd", {"rows": 3, "block": 1, "sum": "allreduce"}),
    "gs-sgd-odd": (
        "gs-sgd",
        {"rows": 7, "columns": 97, "candidates": 1, "block": 50, "sum": "tree"},
    ),
    "gs-sgd-heavymix": ("gs-sgd", {"sum": "tree", "recover": "heavymix"}),
    "gs-sgd-mean": ("gs-sgd", {"sum": "tree", "estimate": "mean"}),
    "gs-sgd-one-round": ("gs-sgd", {"rounds": 1, "sum": "tree"}),
    "union": ("union", {}),
    "union-blocks": ("union", {"granularity": "block", "width": 7}),
    "s2": ("s2", {}),
    "s2-blocks": ("s2", {"granularity": "block", "width": 7}),
    "s2-stuck": ("s2", {"granularity": "block", "width": 3, "columns": 5}),
    "s2-median": ("s2", {"decode": "median"}),
    "s2-mean": ("s2", {"rows": 2, "columns": 20, "decode": "mean"}),
    "cheapest": ("cheapest", {}),
    "cheapest-linked": (
        "cheapest",
        {"granularity": "block", "width": 7, "link": Link(1e-3, 1e9)},
    ),
    # On simulated ranks the clock is simulated too, so that results do not vary.
    "auto": ("auto", {"rounds": 1, "visit": 2, "recheck": 1}),
    "deepreduce": ("deepreduce", {}),
}
CODECS = (
    "raw",
    catalog.DEFAULT_CODEC,
    "rice+log4",
    "bloom-p2+qsgd",
    *(f"{name}+float32" for name in catalog.INDEX_CODECS),
    *(f"int32+{name}" for name in catalog.VALUE_CODECS),
)


@dataclass(frozen=True)
class Case:
    """One reducer over vectors of one size, and how its gradients come."""

    name: str
    method: str
    options: dict[str, Any]
    size: int = SMALL
    pieces: str = "float32"
    data: str = "mixed"
    steps: int = STEPS
    new_density: float | None = 0.02
    extras: tuple[str, ...] = ()
    ranks: tuple[int, ...] = RANKS
    device: str = "cpu"


def gradient(case: Case, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    kinds = ("reals", "integers", "reals", "lonely", "reals", "equal", "integers")
    kind = kinds[step % len(kinds)] if case.data == "mixed" else case.data
    if kind == "equal":
        return torch.full((case.size,), 2.0)
    if kind == "lonely":
        values = torch.zeros(case.size)
        if case.size:
            values[(rank * (1 - rank % 2) * 37 + step) % case.size] = 1024.0 + rank
        return values
    if kind == "integers":
        values = torch.randint(-8, 9, (case.size,), generator=generator).float()
        values[torch.rand(case.size, generator=generator) < 0.01] *= 331
        return values
    uniform = torch.rand(case.size, generator=generator) - 0.5
    scale = torch.exp(torch.arange(case.size) // 100 % 7 - 3.0)
    return -uniform.sign() * torch.log1p(-2 * uniform.abs() + 1e-7) * scale


def pieces_of(case: Case, rank: int, step: int) -> list[torch.Tensor]:
    values = gradient(case, rank, step)
    if "unused names" in case.extras:
        # The second name has no gradient on any rank in every other step.
        values[named(case).offsets[1] : named(case).offsets[2]] *= step % 2
    if case.pieces == "float32":
        return [values.to(case.device)]
    if case.pieces == "bfloat16":
        return [values.bfloat16().to(case.device)]
    third = case.size // 3
    parts = values.split([third, third, case.size - 2 * third])
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return [
        part.to(d).clone().to(case.device)
        for part, d in zip(parts, dtypes, strict=True)
    ]


def named(case: Case) -> Layout:
    third = case.size // 3
    sizes = (third - 7, 7, third, case.size - 2 * third)
    return Layout(tuple("abcd"), tuple((size,) for size in sizes))


def cases() -> list[Case]:
    found = []
    for name, (method, options) in METHODS.items():
        base = {"density": 0.05, **options}
        coded = catalog.reducer(method).codec is not None and method != "deepreduce"
        codec = {"codec": "raw"} if coded else {}
        few = {"extras": ("scale", "unused names", "undo"), "pieces": "several"}
        found += [
            Case(f"{name} raw", method, {**base, **codec}),
            Case(f"{name} looked at", method, base, extras=("look",)),
            Case(
                f"{name} several",
                method,
                {**base, "on_nonfinite": "zero", "feedback": "momentum", "seed": 3},
                **few,
            ),
            Case(f"{name} names", method, base, **few),
        ]
        found += [
            Case(f"{name} of {size}", method, {**base, **codec}, size=size, steps=3)
            for size in (0, 1, 2)
        ]
        found += [
            Case(
                f"{name} large {pieces}",
                method,
                {**options, "density": options.get("density", 0.01)},
                size=LARGE,
                pieces=pieces,
                data="reals",
                new_density=0.004,
                ranks=(1, 3, 4),
            )
            for pieces in ("float32", "bfloat16", "several")
            if "%" not in name
        ]
    for codec in CODECS:
        for method, options in (("topk", {}), ("spardl", {"teams": 2})):
            chosen = {**options, "density": 0.05, "codec": codec, "seed": 7}
            found.append(Case(f"{method} {codec}", method, chosen, ranks=(1, 2, 4)))
    for feedback in ("none", "momentum"):
        chosen = {"feedback": feedback, "on_nonfinite": "unchecked", "density": 0.05}
        found += [
            Case(f"{method} {feedback} unchecked", method, chosen)
            for method in ("topk", "gtopk", "spardl", "s2")
        ]
    return found
