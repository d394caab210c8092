"""Names to objects, in one place: for one-line users and the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from thinwire.codecs import Codec, Split
from thinwire.collectives import (
    BF16,
    AllGather,
    BySize,
    Collective,
    Dense,
    GTopK,
    SparDL,
    Warmup,
)
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, Forget, Momentum, Residual
from thinwire.reducers import OnNonfinite, Pipeline

T = TypeVar("T")

WarmupSteps = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Method:
    """A collective by name, and a line that says what it is good for."""

    collective: type[Collective]
    summary: str

    @property
    def options(self) -> tuple[str, ...]:
        """What can be set besides the density."""
        return tuple(name for name in self._fields if name != "density")

    @property
    def _fields(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self.collective))  # type: ignore[arg-type]

    def build(self, density: float, options: Mapping[str, Any]) -> Collective:
        """The collective at a density, with options of its own."""
        chosen = {"density": density} if "density" in self._fields else {}
        return self.collective(**chosen, **options)


METHODS: Mapping[str, Method] = {
    "dense": Method(Dense, "the library's all-reduce: what plain DDP does"),
    "bf16": Method(BF16, "everything in bfloat16, the rounding remembered"),
    "topk": Method(AllGather, "everyone's top k to everyone: few workers"),
    "gtopk": Method(GTopK, "about the top k of the sum, merged in pairs"),
    "spardl": Method(SparDL, "block by block, in log P rounds: the fewest bytes"),
}

CODECS: Mapping[str, Codec] = {"raw": Split()}

FEEDBACKS: Mapping[str, Feedback] = {
    "residual": Residual(),
    "momentum": Momentum(),
    "none": Forget(),
}

DEFAULT_CODEC = "raw"


def method(name: str) -> Method:
    """The method of this name.

    >>> method("topk").collective.__name__
    'AllGather'
    >>> method("top-k")
    Traceback (most recent call last):
    thinwire.errors.ConfigError: unknown method 'top-k': did you mean 'topk' or ...
    """
    return _named(name, METHODS, "method")


def reducer(
    name: str,
    *,
    density: float = 0.01,
    codec: str | Codec | None = None,
    feedback: str | Feedback = "residual",
    warmup: WarmupSteps = 0,
    min_size: int = 0,
    on_nonfinite: OnNonfinite = "propagate",
    seed: int = 0,
    **options: Any,
) -> Pipeline:
    """A whole reducer from names and options, as `thinwire.attach` takes them.

    >>> reducer("topk", density=0.001, warmup=100).collective
    Warmup(then=AllGather(density=0.001), dense=100, ramp=0, start=0.25)
    """
    chosen = method(name)
    for option in options:
        if option not in chosen.options:
            known = (*chosen.options, *_OPTIONS)
            raise ConfigError(
                f"unknown option {option!r} of {name!r}{_hint(option, known)}"
            )
    collective = chosen.build(density, options)
    if min_size:
        collective = BySize(min_size, collective)
    dense, ramp = warmup if isinstance(warmup, tuple) else (warmup, 0)
    if dense or ramp:
        collective = Warmup(collective, dense, ramp)
    if codec is None and collective.coded:
        codec = DEFAULT_CODEC
    return Pipeline(
        collective,
        _named(codec, CODECS, "codec") if isinstance(codec, str) else codec,
        _named(feedback, FEEDBACKS, "feedback")
        if isinstance(feedback, str)
        else feedback,
        on_nonfinite,
        seed,
    )


_OPTIONS = (
    "density",
    "scope",
    "codec",
    "feedback",
    "warmup",
    "min_size",
    "grad_scaler",
    "process_group",
    "on_nonfinite",
    "timeout",
    "seed",
)


def _named(name: str, known: Mapping[str, T], what: str) -> T:
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}{_hint(name, known)}")
    return known[name]


def _hint(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    meant = f": did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"{meant} There are: {', '.join(known)}"
