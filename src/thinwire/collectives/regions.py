"""Regions: a vector cut into contiguous parts, each summed by the rank that owns it.

What Ok-Topk and TopkDSA share. Indices in a packet count from the start of its region,
so that they are as short as those of a vector of that size. What the codec rounds off
or leaves out stays in the residual of the rank that encodes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from thinwire import kernels, schedules
from thinwire.channel import Channel, ListSpec, Sealed
from thinwire.collectives.ledger import Ledger
from thinwire.collectives.teams import all_gather
from thinwire.cost import Cost, direct_all_gather
from thinwire.errors import WireError
from thinwire.kernels import contiguous_blocks
from thinwire.sparse import SparseVector, sum_of

_SCATTER, _MOVE, _GATHER = range(3)

Span = tuple[int, int]
"""A part of a vector: its first element, and the one after its last."""


def equal_bounds(size: int, ranks: int) -> tuple[int, ...]:
    """Where regions of the same length begin, and where the last one ends.

    >>> equal_bounds(10, 4)
    (0, 3, 6, 8, 10)
    """
    return (*(block.start for block in contiguous_blocks(size, ranks)), size)


def tell(
    channel: Channel, numbers: Sequence[int], device: torch.device
) -> list[list[int]]:
    """The numbers of every rank, none of them negative, in order of rank."""
    told = torch.tensor(numbers, dtype=torch.int64, device=device)
    nbytes = [told.nbytes] * channel.size
    bodies = channel.group.all_gather(told.view(torch.uint8), nbytes=nbytes)
    each: list[list[int]] = [body.view(torch.int64).tolist() for body in bodies]
    for rank, heard in enumerate(each):
        if min(heard, default=0) < 0:
            whose = channel.group.rank_in_whole(rank)
            raise WireError(f"from rank {whose}: a negative number in {heard}")
    return each


def tell_cost(count: int, ranks: int) -> Cost:
    """The cost of telling `count` numbers.

    >>> tell_cost(1, 5)
    Cost(rounds=4, nbytes=32)
    """
    return direct_all_gather(8 * count, ranks)


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of one reduction: rank r owns elements bounds[r] to bounds[r + 1].

    `ledger` is that of the whole vector, and lists here have its indices.
    """

    ledger: Ledger
    bounds: tuple[int, ...]

    @property
    def spans(self) -> list[Span]:
        """The region of every rank."""
        return list(pairwise(self.bounds))

    def sum_own(self, taken: SparseVector) -> SparseVector:
        """The sum of what all ranks have taken in the region of this one.

        Every part goes straight to its owner, who adds them in order of rank.
        """
        me, spans = self.ledger.channel.rank, self.spans
        parts = [_within(taken, *span) for span in spans]
        # How many entries come is not known: lengths travel ahead.
        expect = [_spec(spans[me], None, _SCATTER, me)] * len(spans)
        return sum_of(self._swap(parts, spans, expect, _SCATTER))

    def gather(
        self,
        mine: SparseVector,
        counts: Sequence[int],
        spans: Sequence[Span] | None = None,
    ) -> SparseVector:
        """Every rank's list, joined: rank r has `counts[r]` entries, all in `spans[r]`.

        Its own region by default.
        """
        channel, spans = self.ledger.channel, spans or self.spans
        steps = schedules.bruck(channel.rank, range(channel.size))
        run = channel.start(steps, lambda r, _: _spec(spans[r], counts[r], _GATHER, r))
        sealed = self._seal(mine, spans[channel.rank], _GATHER, channel.rank)
        lists = all_gather(run, sealed, channel.rank, steps)
        return _joined(
            [
                _absolute(each.vector, span, mine.size)
                for each, span in zip(lists, spans, strict=True)
            ]
        )

    def gather_evenly(self, mine: SparseVector, counts: Sequence[int]) -> SparseVector:
        """The same, after entries have moved so that every rank has as many."""
        ranks, me, total = len(counts), self.ledger.channel.rank, sum(counts)
        # All lists in a row: where those of a rank begin, before and after.
        before = [0, *accumulate(counts)]
        after = [rank * total // ranks for rank in range(ranks + 1)]

        def moved(owner: int, to: int) -> Span:
            first = max(before[owner], after[to])
            return first, max(first, min(before[owner + 1], after[to + 1]))

        def count(owner: int, to: int) -> int:
            first, end = moved(owner, to)
            return end - first

        parts = []
        for to in range(ranks):
            first, end = moved(me, to)
            parts.append(_entries(mine, first - before[me], end - before[me]))
        expect = [
            _spec(self.spans[owner], count(owner, me), _MOVE, me)
            for owner in range(ranks)
        ]
        received = self._swap(parts, [self.spans[me]] * ranks, expect, _MOVE)
        spans = []
        for to in range(ranks):
            owners = [owner for owner in range(ranks) if count(owner, to)] or [to]
            spans.append((self.bounds[owners[0]], self.bounds[owners[-1] + 1]))
        return self.gather(
            _joined(received), [b - a for a, b in pairwise(after)], spans
        )

    def _swap(
        self,
        parts: Sequence[SparseVector],
        spans: Sequence[Span],
        expect: Sequence[ListSpec],
        phase: int,
    ) -> list[SparseVector]:
        """Send `parts[r]`, which is in `spans[r]`, to rank r; what all have sent here.

        All that comes is of this rank's region in the first phase, of its sender's in
        the second. This rank's own part is not encoded.
        """
        channel, size = self.ledger.channel, self.ledger.block.length
        me = channel.rank
        lists = [
            None if to == me else self._seal(part, span, phase, to)
            for to, (part, span) in enumerate(zip(parts, spans, strict=True))
        ]
        received = channel.all_to_all(lists, expect=expect)
        origins = [self.spans[me]] * len(parts) if phase == _SCATTER else self.spans
        return [
            parts[me] if each is None else _absolute(each.vector, origin, size)
            for each, origin in zip(received, origins, strict=True)
        ]

    def _seal(self, part: SparseVector, span: Span, phase: int, number: int) -> Sealed:
        """Encode entries that were taken; what peers do not decode is put back."""
        channel, x, (start, end) = self.ledger.channel, self.ledger.x, span
        indices = (part.indices - start).to(kernels.index_dtype(end - start))
        sealed = channel.seal(
            SparseVector(indices, part.values, end - start),
            source=lambda sent: x.gather(_shifted(sent, start, part.size)),
            part=_part(phase, number),
        )
        if channel.rounding(end - start) != torch.float32:
            sent = _absolute(sealed.vector, span, part.size)
            self.ledger.return_to_residual(part.subtract(sent))
        return sealed


def _part(phase: int, number: int) -> int:
    return (phase << 32) + number


def _spec(span: Span, nnz: int | None, phase: int, number: int) -> ListSpec:
    return ListSpec(span[1] - span[0], nnz, _part(phase, number))


def _entries(vector: SparseVector, first: int, end: int) -> SparseVector:
    return SparseVector(
        vector.indices[first:end], vector.values[first:end], vector.size
    )


def _within(vector: SparseVector, start: int, end: int) -> SparseVector:
    """The entries of a span."""
    edges = vector.indices.new_tensor([start, end])
    return _entries(vector, *torch.searchsorted(vector.indices, edges).tolist())


def _shifted(indices: torch.Tensor, start: int, size: int) -> torch.Tensor:
    return indices.to(kernels.index_dtype(size)) + start


def _absolute(vector: SparseVector, span: Span, size: int) -> SparseVector:
    return SparseVector(_shifted(vector.indices, span[0], size), vector.values, size)


def _joined(parts: Sequence[SparseVector]) -> SparseVector:
    """Lists of which each lies behind the one before."""
    indices = torch.cat([part.indices for part in parts])
    return SparseVector(indices, torch.cat([p.values for p in parts]), parts[0].size)
