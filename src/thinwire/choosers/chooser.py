"""Chooser: a collective that picks another collective in every step.

There is one `x`, so a change of collective loses nothing. All ranks pick the same one.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.collectives import Collective, CollectiveMemory, Dense, MakeBuffer, Total


@dataclass(frozen=True, slots=True)
class Choice:
    """The collective of one step, and the memory it uses.

    `plain` says that the step may be DDP's own all-reduce, without guard and residual.
    After the reduction, `finish(seconds, channel)` is called on all ranks; the seconds
    are only measured if `timed`.
    """

    collective: Collective
    memory: CollectiveMemory
    plain: bool = False
    timed: bool = False
    finish: Callable[[float, Channel], None] | None = None


class Chooser(Collective):
    """Reduces with the collective that `choose` returns."""

    __slots__ = ()

    @abstractmethod
    def choose(self, memory: CollectiveMemory, size: int, step: int) -> Choice:
        """The collective for a vector of `size` elements in its reduction `step`."""

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Total:
        choice = self.choose(memory, x.size, channel.step)
        return choice.collective.all_reduce_(x, channel, choice.memory, out)


def each_replaced(
    collective: Collective, change: Callable[[Collective], Collective]
) -> Collective:
    """A collective, or what a chooser chooses from, changed; choosers stay."""
    if not isinstance(collective, Chooser):
        return change(collective)
    changed: dict[str, object] = {}
    for each in fields(collective):  # type: ignore[arg-type]
        value = getattr(collective, each.name)
        if isinstance(value, Collective):
            changed[each.name] = each_replaced(value, change)
        elif isinstance(value, tuple):
            # A chooser's candidates; no two of them are equal.
            parts = (each_replaced(part, change) for part in value)
            changed[each.name] = tuple(dict.fromkeys(parts))
    return replace(collective, **changed)  # type: ignore[type-var]


def choose(
    collective: Collective, memory: CollectiveMemory, size: int, step: int
) -> Choice:
    """What `collective` chooses, or itself if it is not a chooser."""
    if isinstance(collective, Chooser):
        return collective.choose(memory, size, step)
    return Choice(collective, memory, plain=isinstance(collective, Dense))
