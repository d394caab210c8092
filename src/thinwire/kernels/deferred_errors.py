"""Errors in received bytes: a device finds them, the CPU reads them some steps later.

To raise an error at once, the CPU would wait for the device in every decoder. Instead
a decoder is given a flag, an int32 on the device, and sets it where bytes are invalid.
The flags of all ranks are copied to the CPU behind the work of each reduction.
"""

from collections import deque

import torch
from torch import Tensor

from thinwire.kernels.transfers import start_fetch

# Copies that may be under way before `found` waits for the oldest.
_MOST_COPIES = 2


class DeferredErrors:
    """One flag on the device for each rank, and the copies of the flags to the CPU.

    Only the thread that runs the reduction may call its methods.
    """

    def __init__(self, ranks: int, device: torch.device) -> None:
        self._flags = torch.zeros(ranks, dtype=torch.int32, device=device)
        self._copies: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()

    def flag(self, rank: int) -> Tensor:
        """The flag for what is received from a rank: zero until an error is found."""
        return self._flags[rank : rank + 1]

    def start_copy(self) -> None:
        """Copy the flags to the CPU once the work queued so far is done."""
        flags = self._flags
        self._copies.append(start_fetch(flags) if flags.is_cuda else (flags, None))

    def found(self, *, wait: bool = False) -> list[int]:
        """The ranks whose flag is set in the copies that have arrived, or in all."""
        while self._copies:
            flags, event = self._copies[0]
            if event is not None and not event.query():  # type: ignore[no-untyped-call]
                if not wait and len(self._copies) <= _MOST_COPIES:
                    break
                event.synchronize()
            ranks = [rank for rank, flag in enumerate(flags.tolist()) if flag]
            if ranks:
                return ranks  # the copy stays, so that a second call returns them too
            self._copies.popleft()
        return []


def must_raise(invalid: Tensor, errors: Tensor | None) -> bool:
    """Whether a decoder on a device must raise an error now.

    With `errors`, the flag is set if `invalid` is and the CPU does not wait. Without,
    the CPU reads `invalid`.
    """
    if errors is None:
        return bool(invalid)
    errors.bitwise_or_(invalid)
    return False
