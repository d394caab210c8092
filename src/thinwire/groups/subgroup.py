"""SubGroup: some ranks of a group, which exchange messages through it.

Everything is made of exchanges of the whole group, over its connections: the numbers of
ranks in its errors are those of the whole group, and a rank that fails here fails the
calls of all others, too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.groups import checks
from thinwire.groups.group import Group, Op
from thinwire.groups.max_reduce import canonicalize_
from thinwire.schedules import distances


class SubGroup(Group):
    """The `members` of a group, numbered in the order given; this rank is one of them.

    The members make the same calls in the same order. Other ranks take no part. Sums
    are added in the same order everywhere, simulated or real.
    """

    def __init__(self, group: Group, members: Sequence[int]) -> None:
        self._group = group
        self._members = tuple(members)
        self._rank = self._members.index(group.rank)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._members)

    def rank_in_whole(self, rank: int) -> int:
        return self._group.rank_in_whole(self._members[rank])

    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        checks.check_exchange(self, body, dst=dst, src=src, nbytes=nbytes)
        return self._group.exchange(
            body,
            dst=None if dst is None else self._members[dst],
            src=None if src is None else self._members[src],
            nbytes=nbytes,
        )

    def post_receives(self, bodies: Sequence[tuple[int, int]]) -> None:
        checks.check_receives(self, bodies)
        self._group.post_receives(
            [(self._members[src], nbytes) for src, nbytes in bodies]
        )

    def refuse_receives(self) -> None:
        self._group.refuse_receives()

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        checks.check_all_to_all(self, bodies, nbytes)
        hops = [
            ((self.rank + step) % self.size, (self.rank - step) % self.size)
            for step in range(1, self.size)
        ]
        if nbytes is not None:
            self.post_receives([(src, nbytes[src]) for _, src in hops])
        received = [bodies[self.rank].clone()] * self.size
        for dst, src in hops:
            length = None if nbytes is None else nbytes[src]
            body = self.exchange(bodies[dst], dst=dst, src=src, nbytes=length)
            received[src] = received[self.rank] if body is None else body
        return received

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        checks.check_all_reduce(parts)
        for tensor, op in parts:
            if op is Op.MAX:
                self._disseminate_(tensor)
            else:
                self._combine_(tensor.view(-1), op)

    def now(self) -> float:
        return self._group.now()

    def _combine_(self, flat: Tensor, op: Op) -> None:
        """Send each chunk to its owner, who combines them; gather the results."""
        chunks = flat.tensor_split(self.size)
        own = chunks[self.rank]
        lengths = [own.nbytes] * self.size
        lengths[self.rank] = 0
        bodies = [chunk.view(torch.uint8) for chunk in chunks]
        bodies[self.rank] = bodies[self.rank][:0]
        received = self.all_to_all(bodies, nbytes=lengths)
        for body in received[: self.rank] + received[self.rank + 1 :]:
            theirs = body.view(own.dtype)
            _ = own.add_(theirs) if op is Op.SUM else own.bitwise_or_(theirs)
        gathered = self.all_gather(
            own.view(torch.uint8), nbytes=[chunk.nbytes for chunk in chunks]
        )
        for chunk, body in zip(chunks, gathered, strict=True):
            chunk.copy_(body.view(own.dtype))

    def _disseminate_(self, tensor: Tensor) -> None:
        for hop in distances(self.size):
            body = self.exchange(
                tensor.view(-1).view(torch.uint8),
                dst=(self.rank + hop) % self.size,
                src=(self.rank - hop) % self.size,
                nbytes=tensor.nbytes,
            )
            if body is not None:
                theirs = body.view(tensor.dtype).view(tensor.shape)
                torch.maximum(tensor, theirs, out=tensor)
        canonicalize_(tensor)
