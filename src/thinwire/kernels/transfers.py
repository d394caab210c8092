"""Copies between the memory of a device and that of the CPU."""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=1024)
def on_device(data: bytes, device: torch.device) -> Tensor:
    """Bytes in the memory of a device; cached, so that a second call costs no copy."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def fetch(tensor: Tensor) -> Tensor:
    """The tensor in the CPU's memory; waits for the work queued before it only."""
    if tensor.is_cpu:
        return tensor
    fetched, event = start_fetch(tensor)
    event.synchronize()
    return fetched


def start_fetch(tensor: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """A copy in pinned memory, and the event that is recorded once it is there."""
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(tensor.device))
    return pinned, event
