"""How kernels for CUDA are written and launched, in the interpreter too.

With `TRITON_INTERPRET=1` in the environment Triton runs kernels in Python, one program
after the other, on tensors in the CPU's memory: slowly, on any machine.
Options that only a device has are left out there.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

kernel: Any = triton.jit

INTERPRETED = bool(triton.knobs.runtime.interpret)

# Blocks up to this length have indices of 32 bits, a tile beyond their end included.
LONGEST = 2**31 - 2**14

# Products and sums round one by one: the reference has no fused multiply-add.
EXACT: dict[str, Any] = {} if INTERPRETED else {"enable_fp_fusion": False}

# All programs of a launch run at once, so they may wait for each other. Two of 256
# threads fit on a multiprocessor if none has more than 128 of its 65 536 registers.
TOGETHER: dict[str, Any] = EXACT | (
    {}
    if INTERPRETED
    else {"launch_cooperative_grid": True, "num_warps": 8, "maxnreg": 128}
)


@lru_cache
def company(device: torch.device) -> int:
    """The number of programs that may wait for each other: one, if interpreted."""
    if device.type != "cuda":
        return 1
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def following(device: torch.device) -> dict[str, Any]:
    """Launch options: set up while the launch before runs, if the device can."""
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return EXACT | (
        {"waiting": True, "launch_pdl": True} if able else {"waiting": False}
    )


def cdiv(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def flat(tensor: Tensor) -> Tensor:
    """The tensor, if it is contiguous."""
    if not tensor.is_contiguous():
        raise ValueError("a kernel works on contiguous tensors: call .contiguous()")
    return tensor.detach().view(-1)


@kernel
def await_others(waiting: tl.constexpr, admitting: tl.constexpr) -> None:
    """The first statement of a launch that is set up while the one before it runs.

    Until that is done, and with it all before, nothing may be read or written. If
    `admitting`, the next launch is set up beside this one, if it waits as well: good
    for short launches; a long one loses more than the next one gains.
    """
    if waiting:
        if admitting:
            tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@kernel
def magnitude(value) -> Any:
    """Integers in the order of |value|: NaN above infinity."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@kernel
def position(j, start, stride, chunk: tl.constexpr) -> Any:
    """Where elements of a block lie in the vector; a chunk of 0 is the whole block."""
    if chunk == 0:
        p = start + j.to(tl.int64)
    else:
        row = j // chunk
        p = start + row.to(tl.int64) * stride + (j - row * chunk)
    return p


@kernel
def reach(counts, k, bins: tl.constexpr) -> Any:
    """The bin in which a count from the top reaches `k`, and how many it must give."""
    from_here = tl.sum(counts) - tl.cumsum(counts) + counts
    b = tl.sum((from_here >= k).to(tl.int32)) - 1
    above = tl.sum(tl.where(tl.arange(0, bins) > b, counts, 0))
    return b, k - above


@kernel
def arrive(ticket) -> Any:
    """Count this program as done; return how many were done before it.

    All writes of the others are visible to the last one.
    """
    tl.debug_barrier()
    return tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu")


@kernel
def meet(counter, target) -> None:
    """A barrier: wait for all programs of the launch; their writes are then visible.

    `target` is the counter's value by then, which earlier waits in the launch raised.
    """
    tl.debug_barrier()
    seen = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") + 1
    while seen < target:
        seen = tl.atomic_add(counter, 0, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
