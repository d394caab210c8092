"""Find a threshold that enough elements of a block reach, and select among those.

Marks made while accumulating are tried first. If fewer than k elements reach their
threshold, a lower one is taken from a sample and the block is marked again in a reading
pass (0.3 ns an element). The lowest threshold is the smallest magnitude above zero:
below it there are only zeros, of which the first ones are taken. So every search ends,
and its result does not depend on the thresholds.
"""

import threading
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu import passes, select
from thinwire.kernels.cpu.arrays import Bits, Floats, Place
from thinwire.kernels.sections import index_dtype

# A threshold aims at more candidates than are selected, by this share at least: by more
# where too few were marked lately.
SLACK = 0.12
# In place of a threshold: no marks.
UNKNOWN = -1
# The smallest magnitude above zero, and how far below the k-th one a threshold may lie
# for each unit of slack (half an octave for 0.3), as differences of bits.
_LEAST = 1
_REACH = (1 << 22) / 0.3
# Blocks up to this length are not worth a sample: all their elements are looked at.
_SMALL = 4096
_NEIGHBOURS = 16
# Elements of the scratch memory that a thread keeps: 32 MB at most.
_KEPT = 1 << 22

_kept = threading.local()


class Marks(NamedTuple):
    """Memory for a bit per element; the threshold of the marks, or UNKNOWN; slack."""

    words: Bits
    threshold: int
    slack: float


def search(
    place: Place, k: int, marks: Marks
) -> tuple[tuple[Tensor, Tensor], int, bool]:
    """The `k` largest; the next threshold; whether too few elements were marked."""
    length = place[-1]
    if not 0 <= k <= length:
        raise ValueError(f"cannot select {k} of {length} elements")
    indices, values = torch.empty(k, dtype=index_dtype(length)), torch.empty(k)
    if k == 0:
        return (indices, values), UNKNOWN, False
    out = (indices.numpy(), values.numpy())
    words, threshold, slack = marks
    goal = goal_of(k, slack, length)
    attempts = 0
    while True:
        if threshold < 0 or attempts > 0:
            lower = _estimate(place, k << 2 * max(attempts - 1, 0))
            threshold = lower if threshold < 0 else min(lower, threshold - 1)
            threshold = max(threshold, _LEAST)
            passes.mark(place, words, threshold)
        given = (place, words, threshold, goal, select.scratch_counts())
        scratch = scratch_for(
            goal + goal // 4, out[0].dtype
        )  # a sample aims less closely
        while True:
            marked, count, kth, reached = select.choose(*given, scratch, out)
            if marked <= len(scratch[0]) - select.SPARE:
                break
            scratch = scratch_for(marked, out[0].dtype)
        attempts += 1
        if count >= k:
            break
        if threshold <= _LEAST:
            select.choose_with_zeros(place, words, k - count, out)
            return (indices, values), _LEAST, False
    found = Found(count, kth, reached)
    missed = marks.threshold >= 0 and attempts > 1
    hint = next_threshold(found, k, threshold=threshold, slack=slack, goal=goal)
    return (indices, values), hint, missed


class Found(NamedTuple):
    """How many reach a threshold; the k-th magnitude; about the goal-th, 0 if fewer."""

    reaching: int
    kth: int
    reached: int


def goal_of(k: int, slack: float, length: int) -> int:
    """How many elements should reach a threshold."""
    return min(length, k + int(slack * k + 4 * sqrt(k)))


def next_slack(slack: float, *, missed: bool) -> float:
    """The slack for the next time; a miss costs another pass, so it falls slowly."""
    return min(2 * slack, 3.0) if missed else max(0.99 * slack, SLACK)


def next_threshold(
    found: Found, k: int, *, threshold: int, slack: float, goal: int
) -> int:
    """The threshold for the next selection, from the result of this one."""
    reaching, kth, reached = found
    if not reached:
        # Elements lie about as densely below the threshold as above it.
        per_element = (kth - threshold) / max(reaching - k, 1)
        reached = int(kth - per_element * (goal - k))
    lowest = kth - int(_REACH * slack)
    return max(min(reached, kth), lowest, _LEAST)


def scratch_for(size: int, dtype: Any) -> tuple[NDArray[Any], Floats]:
    """This thread's scratch memory for candidates, valid until its next call.

    It is kept, because fresh memory costs a page fault every 4 kB.
    """
    scratch = getattr(_kept, "scratch", None)
    size += select.SPARE
    if scratch is None or len(scratch[0]) < size or scratch[0].dtype != dtype:
        scratch = np.empty(size, dtype), np.empty(size, np.float32)
        if size <= _KEPT:
            _kept.scratch = scratch
    return scratch


def _estimate(place: Place, k: int) -> int:
    """A threshold that at least `k` elements reach, estimated from a sample."""
    length = place[-1]
    if length <= _SMALL or k >= length // 2:
        return _LEAST
    size = max(_SMALL, min(1000 * length // k, length // 8))
    found = np.empty(size - size % _NEIGHBOURS, np.float32)
    select.sample(place, found)
    rank = k * len(found) / length
    # Four standard deviations of the number of sampled elements that reach it.
    rank += 4 * sqrt(rank) + 1
    if rank >= len(found):
        return _LEAST
    kth, _ = select.kth_magnitude(found, int(rank), select.scratch_counts())
    return int(kth)
