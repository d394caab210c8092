# mypy: disallow-untyped-decorators=False
"""Passes over every element besides accumulation: a peak to find, a mean to write."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda_elements import rounded
from thinwire.kernels.cuda_launch import EXACT, cdiv, flat, kernel

# Elements of a program that looks for a peak, in steps; elements that one clears.
STEP: Any = tl.constexpr(4096)
STEPS: Any = tl.constexpr(8)
TILE: Any = tl.constexpr(4096)
ACROSS: Any = tl.constexpr(256)


@kernel
def _peaks(vector: tl.tensor, bounds: tl.tensor, peaks: tl.tensor) -> None:
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


@kernel
def _write(
    out: tl.tensor,
    size: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    edges: tl.tensor,
    divisor: tl.tensor,
    brain: tl.constexpr,
) -> None:
    """Zeros, then the entries while their lines are in the cache."""
    t = tl.program_id(0)
    base = t.to(tl.int64) * TILE
    lane = tl.arange(0, TILE)
    kind = out.dtype.element_ty
    tl.store(out + base + lane, tl.zeros([TILE], kind), mask=lane < size - base)
    tl.debug_barrier()
    low, high = tl.load(edges + t), tl.load(edges + t + 1)
    for first in range(low, high, ACROSS):
        i = first + tl.arange(0, ACROSS)
        inside = i < high
        at = tl.load(indices + i, mask=inside, other=0)
        value = tl.div_rn(tl.load(values + i, mask=inside, other=0.0), divisor)
        if brain:
            value = rounded(value)
        tl.store(out + at, value.to(kind), mask=inside)


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


def write_mean(out: Tensor, indices: Tensor, values: Tensor, ranks: int) -> None:
    """`values / ranks` at `indices`, zeros everywhere else."""
    size = out.numel()
    if size == 0:
        return
    tiles = cdiv(size, TILE.value)
    starts = torch.arange(tiles + 1, dtype=indices.dtype, device=out.device)
    edges = torch.searchsorted(indices, starts * TILE.value, out_int32=True)
    brain = out.dtype == torch.bfloat16
    given = flat(out).view(torch.int16) if brain else flat(out)
    listed = (flat(indices), flat(values))
    _write[(tiles,)](given, size, *listed, edges, float(ranks), brain=brain, **EXACT)


@lru_cache(maxsize=1024)
def _edges(bounds: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(bounds, device=device)
