"""What happens in a round, all of it drawn from a seed and the number of the round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thinwire import catalog
from thinwire.collectives import Collective
from thinwire.errors import ConfigError

Draw = np.random.Generator

CODECS = [f"{i}+{v}" for i in catalog.INDEX_CODECS for v in catalog.VALUE_CODECS]
RANKS = range(2, 7)
# Methods whose choices depend on times: their bits differ from run to run.
TIMED = ("auto",)
# Seconds a call may take, where a fault outlasts them or not. A busy machine stalls.
QUICK, PATIENT = 8.0, 20.0

# Faults after which training goes on, and those that end a life.
PASSING = ("bad batch", "bad batch", "stop", "density", "disagreement", "save", "scale")
PASSING_IN_A_LAB = ("cut", "slow host")
ENDING = ("kill", "kill", "kill in a save", "long stop", "closed socket", "flipped bit")
ENDING_IN_A_LAB = ("long cut",)
# Methods that send nothing but packets with checksums, once no step is dense.
SUMMED = ("topk", "gtopk", "spardl", "deepreduce")


@dataclass(frozen=True)
class Fault:
    """One fault: before or during a step, on some ranks."""

    kind: str
    step: int
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0  # how long it lasts
    delay: float = 0.0  # seconds after the step begins
    detail: Any = None


@dataclass(frozen=True)
class Plan:
    """A round: a model and options, and the ranks and faults of each of its lives.

    Every life but the last ends with a fault. The next one continues from the last save
    that all ranks completed, and may have another number of ranks. Passing faults are
    those of every life, on ranks that all lives have.
    """

    seed: int
    number: int
    ranks: tuple[int, ...]  # how many, in each life
    method: str
    options: dict[str, Any]
    sizes: tuple[int, ...]
    rows: int  # of an embedding with sparse gradients; 0: none
    bucket_mb: float
    steps: int
    scales: tuple[float, ...]
    timeout: float
    lab: bool
    host: int | None  # the rank that keeps the store; None: a process of its own
    every: int  # steps between looks at the residual
    passing: tuple[Fault, ...] = ()
    endings: tuple[Fault | None, ...] = (None,)

    @property
    def repeats(self) -> bool:
        """Whether the same steps have the same bits in every life."""
        return self.method not in TIMED

    def at(self, step: int, *kinds: str) -> Iterator[Fault]:
        """The passing faults of a step."""
        return (f for f in self.passing if f.step == step and f.kind in kinds)

    def __str__(self) -> str:
        known = ", ".join(f"{k}={v}" for k, v in self.options.items())
        where = "lab" if self.lab else "loopback"
        ranks = ", then ".join(str(each) for each in self.ranks)
        endings = ", ".join(f"{f.kind} at {f.step}" for f in self.endings if f)
        return (
            f"{self.method}({known}) on {ranks} ranks, {where}; "
            f"{len(self.passing)} passing faults; {endings or 'no ending'}"
        )


def draw(seed: int, number: int, *, lab: bool) -> Plan:
    """The plan of a round; `lab` says whether a lab can be built."""
    generator = np.random.default_rng([seed, number])
    in_lab = bool(generator.random() < 1 / 3) and lab
    method, options, accepted = _method(generator)
    ranks = tuple(_ranks(generator, accepted, int(generator.choice([1, 2, 2, 3]))))
    sizes = tuple(int(10 ** generator.uniform(1, 3.6)) for _ in range(4))
    # A step or two of a process are needed to find the final units.
    steps = int(generator.integers(10, 17))
    rows = int(generator.choice([0, 0, 40]))
    kinds = [*ENDING, *(ENDING_IN_A_LAB * 3 if in_lab else ())]
    if in_lab and method in SUMMED and "warmup" not in options and not rows:
        kinds += ["flipped stream"] * len(kinds)
    endings = tuple(_endings(generator, ranks, steps, kinds))
    passing = [*_passing(generator, min(ranks), steps, options, lab=in_lab)]
    passing += _saves(generator, endings)
    # The messages by which ranks agree on a save have no checksum.
    flips = [fault.step for fault in endings if fault.kind == "flipped stream"]
    last_save = min(flips, default=steps)
    passing = [f for f in passing if f.kind != "save" or f.step <= last_save]
    long = any(fault.kind != "kill" for fault in endings)
    momentum = options["feedback"] == "momentum"
    return Plan(
        seed=seed,
        number=number,
        ranks=ranks,
        method=method,
        options=options,
        sizes=sizes,
        rows=rows,
        bucket_mb=float(generator.choice([0.001, 0.004, 25])),
        steps=steps,
        scales=_scales(passing, steps),
        timeout=QUICK if long else PATIENT,
        lab=in_lab,
        host=0 if generator.random() < 1 / 4 else None,
        every=1 if momentum else int(generator.choice([1, 1, 4])),
        passing=tuple(passing),
        endings=(*endings, None),
    )


def _method(generator: Draw) -> tuple[str, dict[str, Any], list[int]]:
    """A method, options that fit it, and the numbers of ranks that they fit."""
    while True:
        method = str(generator.choice(list(catalog.METHODS)))
        options: dict[str, Any] = {
            "density": float(generator.choice([0.001, 0.01, 0.1])),
            "feedback": str(generator.choice(["residual"] * 3 + ["momentum", "none"])),
            "on_nonfinite": str(generator.choice(["propagate", "zero"])),
            "seed": int(generator.integers(100)),
        }
        if generator.random() < 2 / 3:
            options["codec"] = str(generator.choice(CODECS))
        warmups: list[Any] = [None, None, 3, (1, 3), "auto"]
        warmup = warmups[generator.integers(len(warmups))]
        if warmup is not None:
            options["warmup"] = warmup
        try:
            made = catalog.reducer(method, **options)
        except ConfigError:
            continue
        accepted = [ranks for ranks in RANKS if _accepts(made.collective, ranks)]
        if not accepted:
            continue
        options["scope"] = str(generator.choice(["bucket", "model"]))
        options["sparse"] = str(generator.choice(list(catalog.SPARSE)))
        if generator.random() < 1 / 5:
            options["clip"] = 50.0
        return method, options, accepted


def _accepts(collective: Collective, ranks: int) -> bool:
    try:
        collective.check(ranks)
    except ConfigError:
        return False
    return True


def _ranks(generator: Draw, accepted: Sequence[int], lives: int) -> Iterator[int]:
    """How many ranks each life has: half of those after the first have others."""
    ranks = int(generator.choice(accepted))
    yield ranks
    for _ in range(1, lives):
        others = [each for each in accepted if each != ranks]
        if others and generator.random() < 1 / 2:
            ranks = int(generator.choice(others))
        yield ranks


def _passing(
    generator: Draw, ranks: int, steps: int, options: dict[str, Any], *, lab: bool
) -> Iterator[Fault]:
    kinds = [*PASSING, *(PASSING_IN_A_LAB * 2 if lab else ())]
    for step in sorted(generator.integers(2, steps - 1, generator.integers(2, 7))):
        kind = str(generator.choice(kinds))
        rank = int(generator.integers(ranks))
        seconds, delay = generator.uniform(0.05, 0.6), generator.uniform(0, 0.02)
        detail: Any = None
        if kind == "bad batch":
            value = float(generator.choice([np.inf, -np.inf, np.nan]))
            # Most often in the first parameter: of the last bucket, when the others
            # have been reduced.
            place = int(generator.choice([0, 0, 0, 1, 2, 3, 4]))
            detail = (place, value, bool(generator.integers(2)))
        if kind in ("density", "disagreement"):
            detail = options["density"] * float(generator.choice([0.5, 2.0, 4.0]))
        if kind == "scale":
            detail = float(2.0 ** generator.integers(0, 12))
        if kind == "slow host":
            detail = int(generator.choice([2, 10])) * 10**6
        yield Fault(kind, int(step), (rank,), float(seconds), float(delay), detail)


def _endings(
    generator: Draw, ranks: Sequence[int], steps: int, kinds: Sequence[str]
) -> Iterator[Fault]:
    """What ends all lives but the last: later and later, with steps to notice it."""
    ends = sorted(generator.integers(1, steps - 2, len(ranks) - 1))
    for step, size in zip(ends, ranks, strict=False):
        kind = str(generator.choice(kinds))
        hurt = 1 if kind != "kill" else int(generator.integers(1, size))
        chosen = generator.choice(size, hurt, replace=False)
        yield Fault(
            kind,
            int(step),
            tuple(sorted(int(rank) for rank in chosen)),
            seconds=QUICK + 5,
            delay=float(generator.choice([0.0, generator.uniform(0, 0.03)])),
            detail=int(generator.integers(2**31)),
        )


def _saves(generator: Draw, endings: Sequence[Fault]) -> Iterator[Fault]:
    """Before most endings a save, which the next life may go on from.

    Not before step 2: units are not final then, and a later life would make them so in
    a step that may be a bad one.
    """
    for ending in endings:
        step = int(generator.integers(2, max(ending.step, 2) + 1))
        if generator.random() < 3 / 4:
            yield Fault("save", step)


def _scales(passing: Sequence[Fault], steps: int) -> tuple[float, ...]:
    """The loss scale of each step: halved after a bad batch, as a GradScaler does."""
    scales, scale = [], 1024.0
    for step in range(steps):
        given = [f.detail for f in passing if f.kind == "scale" and f.step == step]
        scale = given[-1] if given else scale
        scales.append(scale)
        if any(f.kind == "bad batch" and f.step == step for f in passing):
            scale = max(scale / 2, 1.0)
    return tuple(scales)
