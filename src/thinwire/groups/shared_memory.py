"""Shared memory: long messages between ranks of one machine without a socket.

Every rank has a file in memory for each peer, which opens it under /proc. A long body
is written there, and one byte is sent in its place. The files have no names, so that
nothing is left behind when ranks are killed.
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from struct import Struct

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.groups.group import Group
from thinwire.groups.subgroup import SubGroup

LONG = 1 << 16
"""Bodies of so many bytes do not go through a socket."""

# What a file begins with, and where its process and descriptor are.
_TOKEN_NBYTES = 16
_ADDRESS = Struct(f"<qq{_TOKEN_NBYTES}s")
_START = 64


class SharedMemoryGroup(SubGroup):
    """Ranks that share memory, if they find that they do in their first all-to-all.

    Elsewhere, such as in different containers, it is a `SubGroup`. The tensors that an
    all-to-all returns may be changed; they are valid until the next call.
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
            self._outgoing[rank].write(bodies[rank])
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
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._token = token
        self._map = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def create(cls) -> "_File":
        """A new file of this process; an `OSError` where the system has none."""
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files in memory")
        file = cls(os.memfd_create("thinwire"), secrets.token_bytes(_TOKEN_NBYTES))
        os.write(file._file.fileno(), file._token)
        return file

    @classmethod
    def at(cls, address: bytes) -> "_File":
        """The file of another process; a `ValueError` if there is another one."""
        process, descriptor, token = _ADDRESS.unpack(address)
        path = f"/proc/{process}/fd/{descriptor}"
        file = cls(os.open(path, os.O_RDWR | os.O_CLOEXEC), token)
        if os.pread(file._file.fileno(), _TOKEN_NBYTES, 0) != token:
            raise ValueError("it is not the file of that peer")
        return file

    def address(self) -> bytes:
        """Where a peer finds it."""
        # The number of this process for /proc, which may differ from its own.
        process = int(Path("/proc/self").readlink().name)
        return _ADDRESS.pack(process, self._file.fileno(), self._token)

    def write(self, body: Tensor) -> None:
        """Replace what is there."""
        if os.fstat(self._file.fileno()).st_size < _START + body.numel():
            os.ftruncate(self._file.fileno(), _START + body.numel())
        self._mapped(body.numel()).copy_(body)

    def read(self, nbytes: int) -> Tensor:
        """What is there, not copied."""
        return self._mapped(nbytes)

    def _mapped(self, nbytes: int) -> Tensor:
        if self._map.numel() < nbytes:
            # A `ValueError` if the file is shorter.
            memory = mmap(self._file.fileno(), _START + nbytes)
            self._map = torch.frombuffer(memory, dtype=torch.uint8, offset=_START)
        return self._map[:nbytes]


def _bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
