"""CollectiveMemory: what a collective remembers between reductions of one vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from thinwire.errors import ConfigError

M = TypeVar("M", bound="CollectiveMemory")


@dataclass(slots=True)
class CollectiveMemory:
    """The base class, for collectives that remember nothing.

    Results depend on what a subclass adds: a checkpoint saves it, and a step that is
    undone restores it, both as the integers of `to_dict`.
    """

    def to_dict(self) -> dict[str, int]:
        """Everything results depend on, as integers by name."""
        return {**self.partial(), **self.common()}

    def load_dict(self, saved: Mapping[str, int]) -> None:
        """Replace the contents by those of a `to_dict`; unknown names are ignored."""

    def common(self) -> dict[str, int]:
        """The entries of `to_dict` that are equal on all ranks."""
        return {}

    def partial(self) -> dict[str, int]:
        """The other entries: each is equal on all ranks that have its name."""
        return {}

    def metrics(self) -> dict[str, float]:
        """What `State.metrics()` reports of it, by name."""
        return {}


def checked(memory: CollectiveMemory, kind: type[M]) -> M:
    """The memory, if it is of the kind that a collective has made."""
    if not isinstance(memory, kind):
        raise ConfigError("the memory of another collective: make one with init()")
    return memory
