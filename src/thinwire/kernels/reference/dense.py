"""Whole vectors: largest magnitudes, and elements of at least some magnitude."""

from itertools import pairwise

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.sections import index_dtype


@primitive
def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    """Largest |v| in each `vector[bounds[i] : bounds[i + 1]]`; NaN is infinity.

    >>> v = torch.tensor([1.0, -3.0, float("nan"), 0.5])
    >>> magnitudes(v, torch.tensor([0, 2, 3, 3, 4])).tolist()
    [3.0, inf, 0.0, 0.5]
    """
    edges = bounds.tolist()
    result = torch.zeros(len(edges) - 1, device=vector.device)
    for i, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            result[i] = vector[low:high].float().abs().max()
    return result.nan_to_num_(nan=float("inf"), posinf=float("inf"))


@primitive
def row_peaks(vector: Tensor, width: int) -> Tensor:
    """Largest |v| in each `width` elements, the last ones fewer; NaN is infinity.

    >>> row_peaks(torch.tensor([1.0, -3.0, float("nan"), 0.5, -2.0]), 2).tolist()
    [3.0, inf, 2.0]
    """
    whole = vector.numel() // width * width
    peaks = vector[:whole].view(-1, width).abs().amax(1)
    if whole < vector.numel():
        peaks = torch.cat([peaks, vector[whole:].abs().amax(0, keepdim=True)])
    return peaks.float().nan_to_num_(nan=float("inf"), posinf=float("inf"))


@primitive
def at_least(x: Tensor, least: float) -> Tensor:
    """Indices of elements, not zero, with |v| >= `least`, and of NaN.

    `least` is a float32.

    >>> x = torch.tensor([1.0, -3.0, float("nan"), 0.0])
    >>> at_least(x, 2.0).tolist(), at_least(x, 0.0).tolist()
    ([1, 2], [0, 1, 2])
    """
    bits = max(int(magnitude_bits(torch.tensor([least]))), 1)
    found = (magnitude_bits(x) >= bits).nonzero().view(-1)
    return found.to(index_dtype(x.numel()))


def magnitude_bits(values: Tensor) -> Tensor:
    """Integers in the order of |v|: NaN above infinity, -0.0 equal to 0.0."""
    return values.contiguous().view(torch.int32) & 0x7FFFFFFF


def by_magnitude(values: Tensor) -> Tensor:
    """The order of selection: larger |v| first, then smaller index."""
    return torch.sort(magnitude_bits(values), descending=True, stable=True).indices
