"""Find a threshold that enough elements of a block reach, and select among those.

Marks made while accumulating are tried first. If fewer than k elements reach their
threshold, a lower one is taken from a sample and the block is marked again in a reading
pass (0.3 ns an element). The lowest threshold is the smallest magnitude above zero:
below it there are only zeros, all equal, of which the first ones are taken. So every
search ends, and with the same result whatever the thresholds were.
"""

import threading
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thinwire.kernels.cpu import passes, select
from thinwire.kernels.cpu.arrays import Place

# The smallest magnitude above zero, and how far below the k-th one a threshold may lie
# for each unit of slack (half an octave for 0.3), as differences of bits.
_LEAST = 1
_REACH = (1 << 22) / 0.3
# Blocks up to this length are not worth a sample: all their elements are looked at.
_SMALL = 4096
_NEIGHBOURS = 16
# Room for candidates that a thread keeps for its next selection: 32 MB at most.
_KEPT = 1 << 22

_kept = threading.local()


class Marks(NamedTuple):
    """Room for a bit per element; the threshold they were made with, or -1; aim."""

    words: NDArray[np.int64]
    threshold: int
    slack: float


def search(
    place: Place, k: int, marks: Marks, indices: NDArray[Any], values: NDArray[Any]
) -> tuple[int, bool]:
    """Write the `k > 0` largest. Answers the next threshold, and if marks were few."""
    words, threshold, slack = marks
    goal = goal_of(k, slack, place.length)
    attempts = 0
    while True:
        if threshold < 0 or attempts > 0:
            lower = _estimate(place, k << 2 * max(attempts - 1, 0))
            threshold = lower if threshold < 0 else min(lower, threshold - 1)
            threshold = max(threshold, _LEAST)
            passes.mark(*place, words, threshold)
        given = (*place[:-1], words, threshold, goal, select.room_for_counts())
        room = room_for(goal + goal // 4, indices.dtype)  # a sample aims less closely
        while True:
            marked, count, kth, reached = select.choose(*given, *room, indices, values)
            if marked <= len(room[0]) - select.SPARE:
                break
            room = room_for(marked, indices.dtype)
        attempts += 1
        if count >= k:
            break
        if threshold <= _LEAST:
            select.choose_with_zeros(*place, words, k - count, indices, values)
            return _LEAST, False
    found = Found(count, kth, reached)
    missed = marks.threshold >= 0 and attempts > 1
    return (
        next_threshold(found, k, threshold=threshold, slack=slack, goal=goal),
        missed,
    )


class Found(NamedTuple):
    """How many reach a threshold; the k-th magnitude; about the goal-th, or 0."""

    reaching: int
    kth: int
    reached: int


def goal_of(k: int, slack: float, length: int) -> int:
    """How many elements a threshold is meant to be reached by."""
    return min(length, k + int(slack * k + 4 * sqrt(k)))


def next_threshold(
    found: Found, k: int, *, threshold: int, slack: float, goal: int
) -> int:
    """The threshold for the next time, from what this one has found."""
    reaching, kth, reached = found
    if not reached:
        # Elements lie about as densely below the threshold as above it.
        per_element = (kth - threshold) / max(reaching - k, 1)
        reached = int(kth - per_element * (goal - k))
    lowest = kth - int(_REACH * slack)
    return max(min(reached, kth), lowest, _LEAST)


def room_for(size: int, dtype: Any) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """This thread's scratch for candidates, until it asks again.

    Kept, because fresh memory costs a fault every 4 kB.
    """
    room = getattr(_kept, "room", None)
    size += select.SPARE
    if room is None or len(room[0]) < size or room[0].dtype != dtype:
        room = np.empty(size, dtype), np.empty(size, np.float32)
        if size <= _KEPT:
            _kept.room = room
    return room


def _estimate(place: Place, k: int) -> int:
    """A threshold that at least `k` elements reach, if a sample tells the truth."""
    length = place.length
    if length <= _SMALL or k >= length // 2:
        return _LEAST
    size = max(_SMALL, min(1000 * length // k, length // 8))
    found = np.empty(size - size % _NEIGHBOURS, np.float32)
    select.sample(*place, found)
    rank = k * len(found) / length
    # Four standard deviations of the number of sampled elements that reach it.
    rank += 4 * sqrt(rank) + 1
    if rank >= len(found):
        return _LEAST
    kth, _ = select.kth_magnitude(found, int(rank), select.room_for_counts())
    return int(kth)
