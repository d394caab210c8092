"""Nodes: densely inside a node, by another collective between nodes.

A node is L ranks with fast links between them; links between nodes are slow. The vector
is cut into L shares. Inside a node every rank sends its part of share l to the rank
with number l there, who adds them up: 4 n (L-1)/L bytes. The ranks of number l on all
nodes reduce share l by the other collective. Then the node gathers the totals of its
shares: lists in 8 bytes per entry, since other codecs would round what was agreed.

So each slow link carries what one rank would send, and every rank of a node sends its
part of it. After a reduction `x` of rank l holds what is left of its node's share l,
and zeros elsewhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self
from zlib import crc32

import torch
from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel, ListSpec, Sealed
from thinwire.codecs import Codec, Split
from thinwire.collectives.by_rows import ByRows
from thinwire.collectives.collective import Collective, Grade, MakeBuffer, Total
from thinwire.collectives.memory import CollectiveMemory, checked
from thinwire.collectives.placement import (
    REMEDY,
    NodesOption,
    Placement,
    checked_nodes,
    placement_of,
)
from thinwire.collectives.regions import tell, tell_cost
from thinwire.cost import Cost, direct_all_gather
from thinwire.errors import ConfigError, WireError
from thinwire.kernels import Block, contiguous_blocks, index_dtype
from thinwire.layout import Layout
from thinwire.sparse import SparseVector, keep_count

INSIDE = "inside nodes"
"""The name of the subgroups whose traffic stays inside a node."""


@dataclass(frozen=True, slots=True)
class Nodes(Collective):
    """Dense sums inside nodes, `between` for each share between nodes.

    `nodes` is the number of consecutive ranks on each node, or the ranks of every node,
    equally many; "auto" stands for what `thinwire.attach` finds out.
    """

    between: Collective
    nodes: NodesOption = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", checked_nodes(self.nodes))
        if isinstance(self.between, ByRows) and self.between.granularity == "row":
            raise ConfigError(
                "granularity is 'row' and nodes are told apart: they cut the vector "
                "into shares, which may cut a row; choose 'element' or 'block'"
            )

    @property
    def grade(self) -> Grade:
        return self.between.grade

    @property
    def coded(self) -> bool:
        return self.between.coded

    @property
    def density(self) -> float | None:
        return self.between.density

    def with_density(self, density: float) -> Self:
        return replace(self, between=self.between.with_density(density))

    def check(self, ranks: int) -> None:
        if not isinstance(self.nodes, str):
            self.between.check(len(self.placement(ranks)))

    def placement(self, ranks: int) -> Placement:
        """The ranks of every node; a `ConfigError` if they are not these ranks."""
        if isinstance(self.nodes, str):
            raise ConfigError(f"nodes is 'auto', which only attach finds out: {REMEDY}")
        return placement_of(self.nodes, ranks)

    def init(self, layout: Layout) -> CollectiveMemory:
        return NodesMemory(lambda size: self.between.init(Layout.flat(size)))

    def all_reduce_(
        self,
        x: Accumulator,
        channel: Channel,
        memory: CollectiveMemory,
        out: MakeBuffer,
    ) -> Total:
        memory = checked(memory, NodesMemory)
        placement = self.placement(channel.size)
        mine = next(node for node in placement if channel.rank in node)
        place = mine.index(channel.rank)
        inside = replace(channel, group=channel.group.subgroup(mine, INSIDE, near=True))
        peers = [node[place] for node in placement]
        across = replace(channel, group=channel.group.subgroup(peers, "between nodes"))

        blocks = contiguous_blocks(x.size, len(mine))
        share = memory.share_of(x.whole(), blocks[place])
        _reduce_scatter_(x.whole(), share, blocks, inside)
        part = memory.part(_name(placement, place), share.size)
        room = _Room(out)
        try:
            total = self.between.all_reduce_(
                share, across, part, lambda: _cut(room.whole(), blocks[place])
            )
        finally:
            share.whole()  # what was extracted from `x` is put back
        # Not near: the memory of a packet must not change while it is read.
        lists = replace(inside, group=channel.group.subgroup(mine, INSIDE))
        return _all_gather(total, inside, lists, blocks=blocks, room=room)

    def cost(self, size: int, ranks: int, codec: Codec | None) -> Cost:
        """The cost if no two nodes list the same element."""
        placement = self.placement(ranks)
        blocks = contiguous_blocks(size, len(placement[0]))
        density = self.between.density
        listed = [
            None
            if density is None
            else min(b.length, len(placement) * keep_count(b.length, density))
            for b in blocks
        ]
        return self.card(size, ranks, codec, listed)

    def card(
        self,
        size: int,
        ranks: int,
        codec: Codec | None,
        listed: Sequence[int | None],
    ) -> Cost:
        """The cost if the totals of the shares have `listed` entries; None is dense."""
        placement = self.placement(ranks)
        count = len(placement[0])
        blocks = contiguous_blocks(size, count)
        costs = []
        for block, nnz in zip(blocks, listed, strict=True):
            gathered = 4 * block.length if nnz is None else _nbytes(block.length, nnz)
            costs.append(
                Cost(count - 1, 4 * (size - block.length))
                + self.between.cost(block.length, len(placement), codec)
                + tell_cost(1, count)
                + direct_all_gather(gathered, count)
            )
        return max(costs, key=lambda cost: cost.nbytes)


@dataclass(slots=True)
class NodesMemory(CollectiveMemory):
    """The memory of the collective between nodes, of the share of this rank.

    `make` makes one for a share of a size. Ranks at one place in their nodes hold the
    same numbers, under a name that also tells these nodes from others: after a change
    of nodes all start anew. `loaded` is what was loaded before the name was known.
    """

    make: Callable[[int], CollectiveMemory]
    name: str = ""
    inner: CollectiveMemory | None = None
    loaded: Mapping[str, int] = field(default_factory=dict)
    _share: Accumulator | None = None

    def share_of(self, x: Tensor, block: Block) -> Accumulator:
        """This rank's share of a vector, and what was learned of it before."""
        values = _cut(x, block)
        known = self._share
        if known is None or not _same(known.whole(), values):
            self._share = known = Accumulator.over(values)
        return known

    def part(self, name: str, size: int) -> CollectiveMemory:
        """The memory of a share, anew if the last one was of another share."""
        if self.inner is None or name != self.name:
            loaded = self.to_dict()
            self.inner, self.name = self.make(size), name
            self.inner.load_dict(_of(name, loaded))
        return self.inner

    def load_dict(self, saved: Mapping[str, int]) -> None:
        self.loaded = dict(saved)
        if self.inner is not None:
            self.inner.load_dict(_of(self.name, saved))

    def partial(self) -> dict[str, int]:
        if self.inner is None:
            return dict(self.loaded)
        held = self.inner.to_dict()
        return {f"{each}, {self.name}": held[each] for each in held}

    def metrics(self) -> dict[str, float]:
        return {} if self.inner is None else self.inner.metrics()


def _reduce_scatter_(
    x: Tensor, share: Accumulator, blocks: Sequence[Block], inside: Channel
) -> None:
    """Add to this rank's share what the node has of it; leave zeros elsewhere."""
    if inside.size == 1:
        return
    chunks = [_cut(x, block) for block in blocks]
    bodies = [chunk.view(torch.uint8) for chunk in chunks]
    bodies[inside.rank] = bodies[inside.rank][:0]
    nbytes = [
        4 * share.size if rank != inside.rank else 0 for rank in range(inside.size)
    ]
    received = inside.group.all_to_all(bodies, nbytes=nbytes)
    for rank, chunk in enumerate(chunks):
        if rank != inside.rank:
            chunk.zero_()
    *others, last = [
        body.view(torch.float32)
        for rank, body in enumerate(received)
        if rank != inside.rank
    ]
    for other in others:
        chunks[inside.rank].add_(other)
    share.accumulate_(last)  # the same pass finds candidates


class _Room:
    """Room for a dense total, made once; shares are parts of it."""

    def __init__(self, make: MakeBuffer) -> None:
        self._make = make
        self._whole: Tensor | None = None

    def whole(self) -> Tensor:
        if self._whole is None:
            self._whole = self._make()
        return self._whole


def _all_gather(
    total: Total,
    inside: Channel,
    lists: Channel,
    *,
    blocks: Sequence[Block],
    room: _Room,
) -> Total:
    """The totals of all shares as one: a list, unless all of them are dense."""
    if inside.size == 1:
        return total
    device = total.device if isinstance(total, Tensor) else total.values.device
    own = 0 if isinstance(total, Tensor) else 1 + total.nnz
    told = [count for (count,) in tell(inside, [own], device)]
    if not any(told):
        return _gather_dense(inside, blocks, room.whole())
    vector = _listed_(total) if isinstance(total, Tensor) else total
    expect = [
        ListSpec(block.length, count - 1 if count else block.length)
        for count, block in zip(told, blocks, strict=True)
    ]
    for rank, (length, nnz, _) in enumerate(expect):
        if nnz is not None and nnz > length:
            whose = inside.group.rank_in_whole(rank)
            raise WireError(f"from rank {whose}: a list of {nnz} entries of {length}")
    raw = lists.using(Split())
    sealed: list[Sealed | None] = [raw.seal(vector)] * inside.size
    sealed[inside.rank] = None
    found = raw.all_to_all(sealed, expect=expect)
    parts = [vector if each is None else each.vector for each in found]
    return SparseVector.joined(parts, blocks)


def _gather_dense(inside: Channel, blocks: Sequence[Block], total: Tensor) -> Tensor:
    own = _cut(total, blocks[inside.rank]).view(torch.uint8)
    bodies: list[Tensor] = [own] * inside.size
    bodies[inside.rank] = own[:0]
    nbytes = [4 * block.length for block in blocks]
    nbytes[inside.rank] = 0
    for block, body in zip(
        blocks, inside.group.all_to_all(bodies, nbytes=nbytes), strict=True
    ):
        if body.numel():
            _cut(total, block).copy_(body.view(torch.float32))
    return total


def _listed_(total: Tensor) -> SparseVector:
    """Every element in a list; the vector is left zero, as room for a list's mean."""
    size = total.numel()
    places = torch.arange(size, dtype=index_dtype(size), device=total.device)
    values = total.clone()
    total.zero_()
    return SparseVector(places, values, size)


def _cut(x: Tensor, block: Block) -> Tensor:
    return x[block.start : block.start + block.length]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and len(one) == len(other)


@lru_cache(maxsize=256)
def _name(placement: Placement, place: int) -> str:
    """What the memory of the share at a place is called."""
    nodes = crc32(repr(placement).encode())
    return f"share {place} of {len(placement[0])} on nodes {nodes:08x}"


def _of(name: str, saved: Mapping[str, int]) -> dict[str, int]:
    """What was saved of the share of a name."""
    end = f", {name}"
    return {n.removesuffix(end): saved[n] for n in saved if n.endswith(end)}


def _nbytes(size: int, nnz: int) -> int:
    return Split().nbytes(size, nnz) or 0
