"""Rounds, bytes and wire time of a reduction, counted on 4 to 1024 simulated ranks.

    python benchmarks/scaling.py --ranks 4,8,16 --methods topk,spardl-1 --markdown

A vector of 25 M elements at 1 %, on links of 1 Gbit/s. Every counted number is of a
reduction that ran on that many ranks; in brackets stands what the card says. To fit
into memory lists have 1/s of the entries and links 1/s of the bandwidth, and bytes are
multiplied by s. Packet headers do not shrink, so that they weigh s times as much:
"headers" is their share of rank 0's bytes, "off by" how far the bytes are from the
card. A raw packet's length does not depend on the vector's, so vectors are shortened
`CROWD` times more, at as many times the density: the same k, in less memory. The ring
of dense is the group's own, whose bytes a group counts by its formula.

Verified: ranks agree on the total, and what was counted is the card of the scaled size.
The messages of a run are sent again over the other links; over the run's own that must
take the same time, to the bit.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from zlib import crc32

import torch
from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Split
from thinwire.collectives import AllGather, Collective, Dense, GTopK, SparDL
from thinwire.collectives.collective import Total
from thinwire.cost import Cost, Link
from thinwire.groups import Counted, Group, Op, SimulatedGroup, WrappedGroup, simulate
from thinwire.layout import Layout
from thinwire.sparse import SparseVector, keep_count
from thinwire.tools.bench.machine import machine
from thinwire.wire import HEADER, Packet

SIZE = 25_000_000
DENSITY = 0.01
LINKS = tuple(Link(latency, bandwidth=125e6) for latency in (50e-6, 436e-6))
# Raw: what a packet weighs is then plain to see, 8 bytes an entry and a header.
CODEC = Split()

CROWD = 20
SCALES = (1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250)
# Bytes for all ranks, and what one needs for an entry of its list besides the vector.
MEMORY = 3.5e9
ENTRY = 40
# Entries merged by all ranks take some seconds; a list of LONG does not mind a header.
MERGED = 5e7
LONG = 1000
# Seconds to select, send, receive and open a list of any length, on one core.
PER_LIST = 0.7e-3

HEADS = ("P", "method", "s", "rounds", "MB", "off by", "headers")
WIDTHS = (5, 36, 5, 13, 21, 8, 9)

Rows = list[tuple[str, Collective]]


def automatic(ranks: int) -> Rows:
    """What "auto" stands for at the full size: in a scaled run headers would tip it."""
    links: dict[int, list[str]] = {}
    for link in LINKS:
        auto = SparDL(DENSITY, teams="auto", link=link)
        links.setdefault(auto.teams_for(SIZE, ranks, CODEC), []).append(name(link))
    return [
        (f"spardl, auto: {teams} ({', '.join(names)})", SparDL(DENSITY, teams=teams))
        for teams, names in links.items()
    ]


METHODS: dict[str, Callable[[int], Rows]] = {
    "dense": lambda _: [("dense ring", Dense())],
    "topk": lambda _: [("topk all-gather", AllGather(DENSITY))],
    "gtopk-tree": lambda _: [("gtopk tree", GTopK(DENSITY, "tree"))],
    "gtopk": lambda _: [("gtopk butterfly", GTopK(DENSITY))],
    "spardl-1": lambda _: [("spardl, 1 team", SparDL(DENSITY, teams=1))],
    "spardl-2": lambda _: [("spardl, 2 teams", SparDL(DENSITY, teams=2))],
    "spardl-4": lambda _: [("spardl, 4 teams", SparDL(DENSITY, teams=4))],
    "spardl-auto": automatic,
}


def name(link: Link) -> str:
    return f"{1e6 * link.latency:.0f} us"


@dataclass(frozen=True)
class Plan:
    """One reduction, and how far it is scaled down."""

    collective: Collective
    ranks: int
    scale: int
    crowd: int = 1

    @classmethod
    def of(cls, collective: Collective, ranks: int) -> "Plan":
        if not collective.coded:
            return cls(collective, ranks, SCALES[-1])
        k = keep_count(SIZE, DENSITY)
        blocks = blocks_of(collective, ranks)
        fits = MEMORY / ranks / (ENTRY + 4 / (DENSITY * CROWD))
        soon = max(LONG, MERGED * blocks / lists_of(collective, ranks))
        scale = next((s for s in SCALES if k / s <= min(fits, soon)), SCALES[-1])
        return cls(collective, ranks, scale, CROWD)

    @property
    def size(self) -> int:
        return SIZE // (self.scale * self.crowd)

    @property
    def scaled(self) -> Collective:
        density = self.collective.density
        if density is None:
            return self.collective
        return self.collective.with_density(density * self.crowd)

    @property
    def card(self) -> Cost:
        codec = CODEC if self.collective.coded else None
        return self.scaled.cost(self.size, self.ranks, codec)

    def link(self, link: Link) -> Link:
        return Link(link.latency, link.bandwidth / self.scale)


def blocks_of(collective: Collective, ranks: int) -> int:
    return ranks // collective.teams if isinstance(collective, SparDL) else 1


def lists_of(collective: Collective, ranks: int) -> int:
    """How many lists the ranks of a simulation open, to the order of magnitude."""
    if isinstance(collective, AllGather):
        return ranks * ranks
    if isinstance(collective, GTopK):
        return ranks * (ranks - 1).bit_length()
    return ranks * blocks_of(collective, ranks) if collective.coded else 0


class Recorded(WrappedGroup):
    """A group around a group; it remembers the calls of its rank, without contents."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.calls: list[Callable[[Group], object]] = []
        self.packets = 0

    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        length = None if body is None else body.numel()

        def again(group: Group) -> object:
            blank = None if length is None else torch.zeros(length, dtype=torch.uint8)
            return group.exchange(blank, dst=dst, src=src, nbytes=nbytes)

        self.calls.append(again)
        if body is not None and self.rank == 0:
            self.packets += packets_in(body)
        return self._group.exchange(body, dst=dst, src=src, nbytes=nbytes)

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        blank = [torch.zeros_like(body) for body in bodies]
        self.calls.append(lambda group: group.all_to_all(blank, nbytes=nbytes))
        self.packets += self.size - 1
        return self._group.all_to_all(bodies, nbytes=nbytes)

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        lengths = [(tensor.numel(), op) for tensor, op in parts]
        self.calls.append(
            lambda group: group.all_reduce_(
                *((torch.zeros(n), op) for n, op in lengths)
            )
        )
        self._group.all_reduce_(*parts)


def packets_in(message: Tensor) -> int:
    count = 0
    while message.numel():
        message = message[Packet.announced(message) :]
        count += 1
    return count


@dataclass(frozen=True)
class Run:
    """What was counted: rounds, bytes and seconds are the busiest rank's, unscaled."""

    rounds: int
    nbytes: int
    headers: float
    seconds: tuple[float, ...]
    took: float


@cache
def run(plan: Plan) -> Run:
    start = perf_counter()
    collective = plan.scaled

    def reduce(group: SimulatedGroup) -> tuple[Counted, Recorded, int, float]:
        recorded = Recorded(group)
        counted = Counted(recorded)
        generator = torch.Generator().manual_seed(group.rank)
        x = torch.randn(plan.size, generator=generator)
        channel = Channel(counted, CODEC if collective.coded else None)
        state = collective.init(Layout.flat(plan.size))
        given = Accumulator.of(x)
        total = collective.all_reduce_(given, channel, state, lambda: x)
        return counted, recorded, digest(total), group.now()

    first, *others = (plan.link(link) for link in LINKS)
    groups, records, digests, clocks = zip(
        *simulate(plan.ranks, reduce, link=first), strict=True
    )
    assert len(set(digests)) == 1, "ranks disagree on the total"
    assert again(records, first) == max(clocks), (
        "sent again, messages took another time"
    )
    sent = [group.traffic.sent for group in groups]
    rounds = max(group.traffic.rounds for group in groups)
    assert Cost(rounds, max(sent)) == plan.card, "not what the card of this size says"
    return Run(
        rounds,
        max(sent) * plan.scale,
        HEADER.size * records[0].packets / sent[0],
        (max(clocks), *(again(records, link) for link in others)),
        perf_counter() - start,
    )


def again(records: Sequence[Recorded], link: Link) -> float:
    """Seconds until the last rank is done, if these messages cross such a link."""

    def repeat(group: SimulatedGroup) -> float:
        for call in records[group.rank].calls:
            call(group)
        return group.now()

    return max(simulate(len(records), repeat, link=link))


def digest(total: Total) -> int:
    if isinstance(total, SparseVector):
        return crc32(total.values.numpy(), crc32(total.indices.numpy()))
    return crc32(total.numpy())


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    yield [*HEADS, *(f"ms at {name(link)}" for link in LINKS), "ran s"]
    for ranks in options.ranks:
        for method in options.methods:
            for label, collective in METHODS[method](ranks):
                lists = lists_of(collective, ranks)
                yield [str(ranks), label, *cells(collective, ranks, options.lists)]
                if lists > options.lists:
                    why = f"{lists:,} lists, about {lists * PER_LIST / 60:.0f} minutes"
                    options.left_out.append(f"{label}, P = {ranks}: {why}")


def cells(collective: Collective, ranks: int, most: int) -> list[str]:
    card = collective.cost(SIZE, ranks, CODEC if collective.coded else None)
    megabytes = f"({card.nbytes / 1e6:.3f})"
    estimates = [f"({1e3 * link.seconds(card):.2f})" for link in LINKS]
    if lists_of(collective, ranks) > most:
        seconds = [f"- {estimate}" for estimate in estimates]
        rounds = f"- ({card.rounds})"
        return ["-", rounds, f"- {megabytes}", "-", "-", *seconds, "-"]
    plan = Plan.of(collective, ranks)
    found = run(plan)
    seconds = [
        f"{1e3 * counted:.2f} {estimate}"
        for counted, estimate in zip(found.seconds, estimates, strict=True)
    ]
    return [
        str(plan.scale),
        f"{found.rounds} ({card.rounds})",
        f"{found.nbytes / 1e6:.3f} {megabytes}",
        f"{found.nbytes / card.nbytes - 1:+.1%}",
        f"{found.headers:.1%}",
        *seconds,
        f"{found.took:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="4,8,16,32,64,128,256,512,1024")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument(
        "--lists",
        type=int,
        default=150_000,
        help="leave out runs that open more lists than this, each takes about 0.7 ms",
    )
    options = parser.parse_args()
    options.ranks = [int(ranks) for ranks in options.ranks.split(",")]
    options.methods = options.methods.split(",")
    if unknown := set(options.methods) - METHODS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(METHODS)}")
    options.left_out = []
    torch.set_num_threads(1)
    print(f"{machine()}; one core")
    print(f"{SIZE:,} float32, density {DENSITY:g}, raw codec, 1 Gbit/s")
    shorter = f"vectors by {CROWD} s, at {CROWD} times the density"
    print(f"lists and bandwidth are scaled down by s, {shorter}")
    print("counted (card); bytes are the busiest rank's\n", flush=True)
    for number, row in enumerate(rows(options)):
        show(row, markdown=options.markdown, head=number == 0)
    print("\nverified: ranks agree; counted is the card of the scaled size")
    for line in options.left_out:
        print(f"left out (see --lists): {line}")


def show(row: Sequence[str], *, markdown: bool, head: bool) -> None:
    if markdown:
        print(f"| {' | '.join(row)} |", flush=True)
        if head:
            print(f"|{' --- |' * len(row)}")
        return
    widths = [*WIDTHS, *[22] * len(LINKS), 7]
    print("".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)), flush=True)


if __name__ == "__main__":
    main()
