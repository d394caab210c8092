"""The other pass over every element: the largest magnitude in each segment."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.launch import EXACT, cdiv, flat, kernel

# Elements that a program reads at once, and how often.
STEP: Any = tl.constexpr(4096)
STEPS: Any = tl.constexpr(8)


@kernel
def _peaks(vector, bounds, peaks) -> None:
    segment = tl.program_id(1)
    low, high = tl.load(bounds + segment), tl.load(bounds + segment + 1)
    begin = low + tl.program_id(0).to(tl.int64) * STEP
    peak = tl.zeros([STEP], tl.int32)
    while begin < high:
        i = tl.arange(0, STEP)
        value = tl.load(vector + begin + i, mask=i < high - begin, other=0)
        bits = value.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        peak = tl.maximum(peak, bits)
        begin += tl.num_programs(0).to(tl.int64) * STEP
    tl.atomic_max(peaks + segment, tl.max(peak), sem="relaxed")


def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    """Largest |v| in each `vector[bounds[i] : bounds[i + 1]]`; NaN is infinity."""
    edges = tuple(bounds.tolist())
    segments = len(edges) - 1
    peaks = torch.zeros(segments, dtype=torch.int32, device=vector.device)
    longest = max((high - low for low, high in pairwise(edges)), default=0)
    if longest > 0:
        grid = (cdiv(longest, STEP.value * STEPS.value), segments)
        _peaks[grid](flat(vector), _edges(edges, vector.device), peaks, **EXACT)
    return peaks.clamp_(max=0x7F800000).view(torch.float32)


@lru_cache(maxsize=1024)
def _edges(bounds: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(bounds, device=device)
