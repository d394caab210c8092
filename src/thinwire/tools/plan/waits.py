"""The time until the last rank is done, if it is not a sum of rounds.

gTop-k's tree and its folded butterfly, on a number of ranks that is no power of two: a
card's rounds and bytes are off by up to a third there. So their schedules are
simulated, message by message, with the rules of the simulated group's clocks.
"""

from collections.abc import Iterator, Sequence

from thinwire.cost import Link
from thinwire.groups.simulation.clock import Clocks, Messages
from thinwire.schedules import Step


def seconds(schedules: Sequence[Sequence[Step]], nbytes: int, link: Link) -> float:
    """Until all ranks have taken their steps, with messages of `nbytes`."""
    messages = Messages[int](Clocks(len(schedules), link))
    ranks = [
        _play(rank, steps, messages, nbytes) for rank, steps in enumerate(schedules)
    ]
    awaited = [next(rank, None) for rank in ranks]
    while booked := messages.book():
        for src, dst in booked:
            if awaited[dst] == src:
                awaited[dst] = next(ranks[dst], None)
    return float(max(messages.clocks.now))


def _play(
    rank: int, steps: Sequence[Step], messages: Messages[int], nbytes: int
) -> Iterator[int]:
    """Take the steps of a rank; yields a source whenever its message is missing."""
    clocks = messages.clocks
    for step in steps:
        sent = float(clocks.now[rank])
        if step.dst is not None:
            messages.send(rank, step.dst, nbytes, nbytes)
            sent += clocks.link.transfer(nbytes)
        if step.src is not None:
            while messages.receive(step.src, rank) is None:
                yield step.src
        clocks.wait_until(rank, sent)
