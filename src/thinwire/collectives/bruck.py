"""Bruck's all-gather: any number of ranks, ceil(log2 P) messages, bytes forwarded."""

from collections.abc import Iterator, Sequence

from thinwire.channel import Channel, Sealed, Slot


def hops(count: int) -> Iterator[tuple[int, int]]:
    """How far each message goes, and how many lists it carries.

    >>> list(hops(6))
    [(1, 1), (2, 2), (4, 2)]
    """
    distance = 1
    while distance < count:
        yield distance, min(2 * distance, count) - distance
        distance *= 2


def gather(
    channel: Channel, mine: Sealed, *, peers: Sequence[int], expect: Sequence[Slot]
) -> list[Sealed]:
    """Everyone's list, in the order of `peers`; `expect` describes each of them."""
    count = len(peers)
    me = peers.index(channel.rank)
    held = [mine]  # of the peers me, me + 1, ...
    for distance, carried in hops(count):
        after = me + distance
        held += channel.exchange(
            held[:carried],
            dst=peers[(me - distance) % count],
            src=peers[after % count],
            expect=[expect[(after + i) % count] for i in range(carried)],
        )
    return held[count - me :] + held[: count - me]
