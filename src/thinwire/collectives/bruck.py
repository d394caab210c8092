"""Bruck's all-gather: any number of ranks, ceil(log2 P) messages, bytes forwarded."""

from collections.abc import Iterator, Sequence

from thinwire.channel import Bag, Channel, Sealed, Slot


def hops(count: int) -> Iterator[tuple[int, int]]:
    """How far each message goes, and how many lists it carries.

    >>> list(hops(6))
    [(1, 1), (2, 2), (4, 2)]
    """
    distance = 1
    while distance < count:
        yield distance, min(2 * distance, count) - distance
        distance *= 2


def arrivals(me: int, peers: Sequence[int], expect: Sequence[Slot]) -> list[Bag]:
    """What each message brings to the peer at `me`, in turn."""
    count = len(peers)
    return [
        (
            peers[(me + distance) % count],
            [expect[(me + distance + i) % count] for i in range(carried)],
        )
        for distance, carried in hops(count)
    ]


def gather(
    channel: Channel, mine: Sealed, *, peers: Sequence[int], expect: Sequence[Slot]
) -> list[Sealed]:
    """Everyone's list, in the order of `peers`; `expect` describes each of them."""
    count = len(peers)
    me = peers.index(channel.rank)
    held = [mine]  # of the peers me, me + 1, ...
    bags = arrivals(me, peers, expect)
    for (distance, carried), (src, slots) in zip(hops(count), bags, strict=True):
        dst = peers[(me - distance) % count]
        held += channel.exchange(held[:carried], dst=dst, src=src, expect=slots)
    return held[count - me :] + held[: count - me]
