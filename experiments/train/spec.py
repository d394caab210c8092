"""Spec: what is run, as plain values, and a key that names it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.train.reduction import Reduction
from thinwire.errors import ConfigError

_SEEDS = 2**31  # what every generator of random numbers takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is run: everything that the result depends on, as plain values."""

    task: str
    reduction: Reduction = field(default_factory=Reduction)
    workers: int = 8
    seed: int = 0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    task_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"{self.workers} workers: give 1 or more")
        if not 0 <= self.seed < _SEEDS:
            raise ConfigError(
                f"seed is {self.seed}: give a number from 0 to {_SEEDS - 1}"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Spec":
        """A specification from JSON."""
        try:
            rest = dict(values)
            reduction = Reduction(**rest.pop("reduction", {}))
            return cls(reduction=reduction, **rest)
        except TypeError as error:
            raise ConfigError(f"a run that cannot be read: {error}") from error

    @property
    def key(self) -> str:
        """Names the run: specifications of the same key have the same result.

        >>> Spec(task="toy").key == Spec(task="toy", seed=0).key
        True
        """
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
