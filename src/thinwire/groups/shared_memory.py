"""Shared memory: long messages between ranks of one machine without a socket.

Every rank has a file in memory for each peer, which opens it under /proc. A long body
is written there, and one byte is sent in its place. The files have no names, so that
nothing is left behind when ranks are killed. They are sealed: a peer cannot cut one
that is mapped here, which would kill this process.
"""

import os
import secrets
import weakref
from collections.abc import Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from struct import Struct

import torch
from torch import Tensor

from thinwire.errors import GroupError, WireError
from thinwire.groups.group import Group
from thinwire.groups.subgroup import SubGroup

LONG = 1 << 16
"""Bodies of at least this size do not go through a socket."""

# What a file begins with, and where its process and descriptor are.
_TOKEN_NBYTES = 16
_ADDRESS = Struct(f"<qq{_TOKEN_NBYTES}s")
_START = 64


class SharedMemoryGroup(SubGroup):
    """Ranks that share memory, if they find that they do in their first all-to-all.

    Elsewhere, such as in different containers, it is a `SubGroup`. The tensors that an
    all-to-all returns may be changed; they are valid until the next call. Their sender
    can change them, too, at any time: they are for numbers, of which any bits will do.
    """

    def __init__(self, group: Group, members: Sequence[int]) -> None:
        super().__init__(group, members)
        self._asked = False
        self._outgoing: dict[int, _File] = {}
        self._incoming: dict[int, _File] = {}
        # Peers with a long body that may still be read: since it was sent, they have
        # sent nothing to this rank, or this rank nothing to them.
        self._reading: set[int] = set()
        self._to_release: set[int] = set()

    @property
    def shares_memory(self) -> bool:
        """Whether long bodies pass through memory, as found in the first all-to-all."""
        return bool(self._incoming)

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        if not self._asked:
            self._asked = True
            self._open_files()
        if nbytes is None or not self._incoming:
            return super().all_to_all(bodies, nbytes=nbytes)
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = {rank for rank in others if bodies[rank].numel() >= LONG}
        expected = {rank for rank in others if nbytes[rank] >= LONG}
        self._release(sent & self._reading, expected & self._to_release)
        told, lengths = list(bodies), list(nbytes)
        for rank in sent:
            try:
                self._outgoing[rank].write(bodies[rank])
            except (OSError, ValueError) as error:
                raise GroupError(
                    f"no memory to share {bodies[rank].numel()} bytes: {error}"
                ) from error
            told[rank] = torch.ones(1, dtype=torch.uint8)
        for rank in expected:
            lengths[rank] = 1
        received = super().all_to_all(told, nbytes=lengths)
        self._reading -= {rank for rank in others if nbytes[rank]}
        self._to_release -= {rank for rank in others if bodies[rank].numel()}
        self._reading |= sent
        self._to_release |= expected
        for rank in expected:
            try:
                received[rank] = self._incoming[rank].read(nbytes[rank])
            except (OSError, ValueError) as error:
                whose = self.rank_in_whole(rank)
                raise WireError(
                    f"from rank {whose}: no shared memory: {error}"
                ) from error
        return received

    @staticmethod
    def opened(address: bytes) -> "_File":
        """A peer's file; an `OSError` or a `ValueError` if it is not there."""
        return _File.at(address)

    def _release(self, awaited: set[int], told: set[int]) -> None:
        """Tell peers that this rank has read what they will overwrite, and wait."""
        for step in range(1, self.size):
            src, dst = (self.rank + step) % self.size, (self.rank - step) % self.size
            body = torch.ones(1, dtype=torch.uint8) if dst in told else None
            self.exchange(
                body,
                dst=None if body is None else dst,
                src=src if src in awaited else None,
                nbytes=1,
            )

    def _open_files(self) -> None:
        """Open each other's files; all ranks use them, or none does."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        mine: dict[int, _File] = {}
        addresses = [bytes(_ADDRESS.size)] * self.size
        with suppress(OSError):
            mine = {rank: _File.create() for rank in others}
            for rank, file in mine.items():
                addresses[rank] = file.address()
        received = super().all_to_all(
            [_bytes(each) for each in addresses], nbytes=[_ADDRESS.size] * self.size
        )
        theirs: dict[int, _File] = {}
        with suppress(OSError, ValueError):
            theirs = {
                rank: self.opened(received[rank].numpy().tobytes()) for rank in others
            }
        complete = bytes([len(mine) == len(theirs) == len(others)])
        told = super().all_to_all(
            [_bytes(complete)] * self.size, nbytes=[1] * self.size
        )
        if all(bool(each) for each in told):
            self._outgoing, self._incoming = mine, theirs


class _File:
    """A file in memory, mapped; it begins with a random token."""

    def __init__(self, descriptor: int, token: bytes) -> None:
        self._descriptor, self._token = descriptor, token
        weakref.finalize(self, os.close, descriptor)
        self._map = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def create(cls) -> "_File":
        """A new file of this process; an `OSError` where the system has none."""
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory")
        import fcntl  # noqa: PLC0415 (not on every system)

        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        descriptor = os.memfd_create("thinwire", flags)
        file = cls(descriptor, secrets.token_bytes(_TOKEN_NBYTES))
        os.write(descriptor, file._token)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return file

    @classmethod
    def at(cls, address: bytes) -> "_File":
        """The file of another process; a `ValueError` if there is another one."""
        import fcntl  # noqa: PLC0415 (not on every system)

        process, number, token = _ADDRESS.unpack(address)
        path = f"/proc/{process}/fd/{number}"
        # An address of something else, such as a terminal, does no harm.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        descriptor = os.open(path, flags)
        file = cls(descriptor, token)
        if os.pread(descriptor, _TOKEN_NBYTES, 0) != token:
            raise ValueError("it is not the file of that peer")
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("it can be cut")
        return file

    def address(self) -> bytes:
        """Where a peer finds it."""
        # The number of this process for /proc, which may differ from its own.
        process = int(Path("/proc/self").readlink().name)
        return _ADDRESS.pack(process, self._descriptor, self._token)

    def write(self, body: Tensor) -> None:
        """Replace what is there."""
        if self._map.numel() < body.numel():
            # An `OSError` now, if there is no such memory, and no signal later.
            os.posix_fallocate(self._descriptor, 0, _START + body.numel())
        self._mapped(body.numel()).copy_(body)

    def read(self, nbytes: int) -> Tensor:
        """What is there, not copied."""
        return self._mapped(nbytes)

    def _mapped(self, nbytes: int) -> Tensor:
        if self._map.numel() < nbytes:
            # A `ValueError` if the file is shorter.
            memory = mmap(self._descriptor, _START + nbytes)
            self._map = torch.frombuffer(memory, dtype=torch.uint8, offset=_START)
        return self._map[:nbytes]


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
