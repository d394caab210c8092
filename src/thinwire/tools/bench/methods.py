"""Methods that are measured: thinwire's by name, and what PyTorch itself offers.

A method owns its residual and other state between steps.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from thinwire import catalog, kernels
from thinwire.codecs import Timed
from thinwire.collectives import Grade
from thinwire.cost import Cost
from thinwire.errors import ConfigError
from thinwire.groups import Counted, Group, Op
from thinwire.hooks.metrics import PHASES
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.tools.bench.torch_methods import (
    DENSE,
    HOOKS,
    PEERS,
    PowerSGD,
    TorchHook,
)

_EPS = torch.finfo(torch.float32).eps
_WARM = 5  # steps until the residual has its usual size


class Method(Protocol):
    """One way to turn a gradient into its mean over all ranks.

    `tolerance` bounds the difference between delivered plus residual and the sum of the
    gradients, as a share of the sum of magnitudes; None where a method only estimates.
    """

    warm: int
    tolerance: float | None

    def reduce_(self, grad: Tensor) -> None: ...

    def phases(self, wall: float) -> dict[str, float]:
        """The seconds of the last reduction by phase; `wall` is their sum."""
        ...

    def cost(self) -> Cost:
        """Rounds and bytes of the last reduction, without TCP/IP headers."""
        ...

    def residual(self) -> Tensor | None:
        """The residual of this rank, or None if the method has none."""
        ...

    def reset(self) -> None:
        """Forget all state."""
        ...


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method with its options and codec, parsed from the command line.

    >>> MethodSpec.parse("spardl:teams=2")
    MethodSpec(method='spardl', options=(('teams', 2),), codec=None)
    >>> MethodSpec.parse("spardl:teams=2", "rice+log4").label
    'spardl:teams=2 rice+log4'
    """

    method: str
    options: tuple[tuple[str, Any], ...] = ()
    codec: str | None = None

    @classmethod
    def parse(cls, text: str, codec: str | None = None) -> "MethodSpec":
        """A name, then options after colons."""
        method, *parts = text.split(":")
        return cls(method, tuple(_option(part, text) for part in parts), codec)

    @property
    def label(self) -> str:
        """A short text that differs between specifications."""
        options = "".join(f":{name}={value}" for name, value in self.options)
        return f"{self.method}{options}{f' {self.codec}' if self.codec else ''}"

    @property
    def peer(self) -> bool:
        """Whether it is PyTorch's."""
        return self.method in PEERS

    def pipeline(self, density: float) -> Pipeline:
        """The reducer; `ConfigError` for unknown options or codecs."""
        return catalog.reducer(
            self.method, density=density, codec=self.codec, **dict(self.options)
        )

    def check(self, density: float, ranks: int | None = None) -> None:
        """Raise `ConfigError` for an unknown method, or one that cannot run."""
        if self.peer:
            return
        collective = self.pipeline(density).collective
        if ranks is not None:
            collective.check(ranks)


def method_specs(
    methods: Sequence[str], codecs: Sequence[str], peers: Sequence[str]
) -> list[MethodSpec]:
    """The dense mean first, then peers, then every method with each codec it takes."""
    unknown = [peer for peer in peers if peer not in PEERS]
    if unknown:
        raise ConfigError(f"unknown peer {unknown[0]!r}. There are: {', '.join(PEERS)}")
    found = [MethodSpec(peer) for peer in dict.fromkeys((DENSE, *peers))]
    for text in methods:
        spec = MethodSpec.parse(text)
        own = catalog.method(spec.method).codec is not catalog.default_codec
        choose = codecs and not own and spec.pipeline(0.5).collective.coded
        found += [MethodSpec.parse(text, each) for each in codecs] if choose else [spec]
    return list(dict.fromkeys(found))


def build(spec: MethodSpec, size: int, density: float, group: Group) -> Method:
    """The method of a specification, ready to reduce gradients of `size` elements."""
    if not spec.peer:
        return ThinwireMethod(spec.pipeline(density), size, group)
    if spec.method.startswith("powersgd-"):
        return PowerSGD(size, int(spec.method.partition("-")[2]))
    return TorchHook(size, *HOOKS[spec.method])


def _option(part: str, text: str) -> tuple[str, Any]:
    name, _, value = part.partition("=")
    if not name or not value:
        raise ConfigError(
            f"{part!r} in {text!r}: write options after the name, as in spardl:teams=2"
        )
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


class ThinwireMethod:
    """A pipeline of thinwire's whose kernels, codec and group are timed."""

    def __init__(self, pipeline: Pipeline, size: int, group: Group) -> None:
        self._stopwatch: kernels.Stopwatch = {}
        codec = pipeline.codec and Timed(pipeline.codec, self._stopwatch)
        self._pipeline = replace(pipeline, codec=codec)
        self._group = CountedGroup(group)
        self._layout = Layout.flat(size)
        self._state = self._pipeline.init(self._layout)
        sparse = pipeline.collective.density is not None
        self.warm = _WARM if sparse else 1
        estimate = pipeline.collective.grade is Grade.NONE
        self.tolerance = None if estimate else 8 * _EPS * group.size

    def reduce_(self, grad: Tensor) -> None:
        self._stopwatch.clear()
        self._group.reset()
        self._group.agreeing = 0.0
        with kernels.timed_primitives(self._stopwatch):
            mean = self._pipeline.reduce_([grad], self._group, self._state)
            if mean is not None:
                self._pipeline.settle(mean, self._state)

    def phases(self, wall: float) -> dict[str, float]:
        seconds = self._stopwatch
        found = {
            phase: sum(seconds.get(part, 0.0) for part in parts)
            for phase, parts in PHASES.items()
        }
        found["agree"] = self._group.agreeing
        found["exchange"] = self._group.traffic.wait - self._group.agreeing
        return found | {"rest": max(wall - sum(found.values()), 0.0)}

    def cost(self) -> Cost:
        return self._group.traffic.cost

    def residual(self) -> Tensor:
        return self._state.memory.x.whole()

    def reset(self) -> None:
        self._state = self._pipeline.init(self._layout)


class CountedGroup(Counted):
    """Counts traffic, and the guard's wait apart: only its message is in float64."""

    agreeing = 0.0

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        before = self.traffic.wait
        super().all_reduce_(*parts)
        if parts[0][0].dtype == torch.float64:
            self.agreeing += self.traffic.wait - before
