"""Faulty: a group that fails on purpose.

A fault is in one call of one rank: it dies before the call, stalls before it, or
damages what the call has received.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from thinwire.errors import GroupError
from thinwire.groups.group import Group, Op, WrappedGroup


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at one call of the rank, counted from 0.

    "die" raises before the call, "stall" waits `seconds` before it. "truncate" takes
    the last byte from everything received from others, "flip" turns its first bit.
    """

    call: int
    kind: Literal["die", "stall", "truncate", "flip"]
    seconds: float = 0.0


class Faulty(WrappedGroup):
    """A group with faults. `sleep` is how a stall waits: simulated ranks `spend`."""

    def __init__(
        self, group: Group, *faults: Fault, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(group)
        self._faults = faults
        self._sleep = sleep
        self._call = -1

    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        self._before()
        incoming = self._group.exchange(body, dst=dst, src=src, nbytes=nbytes)
        return None if incoming is None else self._damaged(incoming)

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        self._before()
        received = self._group.all_to_all(bodies, nbytes=nbytes)
        return [
            body if rank == self.rank else self._damaged(body)
            for rank, body in enumerate(received)
        ]

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        self._before()
        self._group.all_reduce_(*parts)
        if self._striking("truncate"):
            raise GroupError("an all-reduce receives nothing that could be truncated")
        for tensor, _ in parts:
            tensor.copy_(self._damaged(tensor))

    def _before(self) -> None:
        self._call += 1
        for fault in self._striking("stall"):
            self._sleep(fault.seconds)
        if self._striking("die"):
            raise GroupError(f"rank {self.rank} dies at call {self._call}")

    def _striking(self, kind: str) -> list[Fault]:
        return [
            fault
            for fault in self._faults
            if fault.call == self._call and fault.kind == kind
        ]

    def _damaged(self, received: Tensor) -> Tensor:
        if received.numel() == 0:
            return received
        if self._striking("flip"):
            received = received.clone()
            received.view(-1).view(torch.uint8)[0] ^= 1
        return received[:-1] if self._striking("truncate") else received
