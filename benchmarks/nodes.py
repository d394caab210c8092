"""Reductions on hosts with several ranks each, flat and with `nodes`: time and bytes.

    .venv/bin/python benchmarks/nodes.py --hosts 4 --local 2 --rate 1gbit

Hosts are namespaces with shaped links between them (see docs/reference/lab.md); ranks
of one host talk over its loopback. Every method runs flat, on nodes over sockets only,
and on nodes with shared memory, in turns. What a host sends over its link is what the
kernel counts there, all headers included. After the measurement each method is
verified: the same bits on all ranks, and nothing lost.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import tables

from thinwire import catalog
from thinwire.collectives import Dense, Nodes
from thinwire.collectives.nodes import INSIDE
from thinwire.groups import Counted, Group
from thinwire.groups.torch import TorchGroup
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.tools.bench.gradients import Gradients
from thinwire.tools.bench.ranks import gathered, joined, slowest
from thinwire.tools.lab import Lab

METHODS = ("dense", "bf16", "topk", "gtopk", "spardl")
TOLERANCE = 2e-6  # of the magnitudes that were added: sums of floats round
LINK = Path("/sys/class/net/eth0/statistics/tx_bytes")
MARK = "figures "


def pipeline(method: str, nodes: int, density: float) -> Pipeline:
    """A method flat, or on nodes where `nodes` is not 0."""
    if method == "dense":
        return Pipeline(Nodes(Dense(), nodes) if nodes else Dense())
    return catalog.reducer(method, density=density, nodes=nodes or None)


class Sockets(TorchGroup):
    """Ranks that share no memory."""

    def subgroup(
        self, members: Sequence[int], name: str, *, near: bool = False
    ) -> Group:
        return super().subgroup(members, name)


class Way:
    """One method, its state on this rank, and what was seen of it."""

    def __init__(
        self, label: str, reducer: Pipeline, size: int, kind: type[TorchGroup]
    ) -> None:
        self.label, self.reducer = label, reducer
        self.group = Counted(kind.own())
        self.state = reducer.init(Layout.flat(size))
        self.seconds: list[float] = []
        self.link: list[int] = []

    def reduce(self, grad: Tensor, *, counted: bool) -> None:
        dist.barrier()
        before, start = int(LINK.read_text()), perf_counter()
        mean = self.reducer.reduce_([grad], self.group, self.state)
        took = slowest(perf_counter() - start)
        sent = max(gathered(int(LINK.read_text()) - before))
        assert mean is not None
        self.reducer.settle(mean, self.state)
        if counted:
            self.seconds.append(took)
            self.link.append(sent)

    @property
    def shares_memory(self) -> bool:
        """Whether ranks of a host pass long messages through memory."""
        parts = [p for (name, *_), p in self.group.parts.items() if name == INSIDE]
        return any(p.shares_memory for p in parts)

    def verify(self, grad: Tensor) -> None:
        """One more step: the law on sums of neighbours, and the bits on all ranks."""
        before = sums(self.state.memory.x.whole()) + sums(grad)
        stake = sums(self.state.memory.x.whole().abs()) + sums(grad.abs())
        self.reducer.reduce_([grad], self.group, self.state)
        total = sums(grad) * dist.get_world_size()
        left = sums(self.state.memory.x.whole())
        for each in (before, left, stake):
            dist.all_reduce(each)
        gap = (before - total - left).abs()
        if bool((gap > TOLERANCE * stake).any()):
            raise SystemExit(f"{self.label}: lost {float((gap / stake).max()):.1e}")
        bits = int(grad.view(torch.int32).to(torch.int64).sum())
        weighed = int((grad.view(torch.int32) * torch.arange(len(grad))).sum())
        if len(set(gathered((bits, weighed)))) > 1:
            raise SystemExit(f"{self.label}: ranks got different means")


def sums(vector: Tensor) -> Tensor:
    """Sums of neighbours, in float64."""
    return torch.stack([part.sum(dtype=torch.float64) for part in vector.split(4096)])


def rank(args: argparse.Namespace) -> None:
    """Measure on this rank; rank 0 prints the figures."""
    torch.set_num_threads(1)
    with joined() as number:
        for size in args.sizes:
            for method in args.methods:
                found = measure(method, size, number, args)
                if number == 0:
                    for each in found:
                        print(MARK + json.dumps(each), flush=True)


def measure(
    method: str, size: int, number: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    ways = [
        Way(f"{method}, {name}", pipeline(method, nodes, args.density), size, kind)
        for name, nodes, kind in (
            ("flat", 0, TorchGroup),
            ("nodes over sockets", args.local, Sockets),
            ("nodes", args.local, TorchGroup),
        )
    ]
    drawn, grad = Gradients(size, number), torch.empty(size)
    for step in range(args.warm + args.steps):
        for way in ways:
            drawn.fill_(grad)
            way.reduce(grad, counted=step >= args.warm)
    for way in ways:
        drawn.fill_(grad)
        way.verify(grad)
    return [
        {
            "way": way.label,
            "size": size,
            "seconds": way.seconds,
            "link": way.link,
            "sent": way.group.traffic.sent,
            "inside": way.group.traffic_of(INSIDE).sent,
            "shared": way.shares_memory,
        }
        for way in ways
    ]


def main(args: argparse.Namespace, given: Sequence[str]) -> None:
    """Build each lab, run, and print a table."""
    figures: list[dict[str, Any]] = []

    def hear(number: int, line: str) -> None:
        if line.startswith(MARK):
            figures.append(json.loads(line.removeprefix(MARK)))
        else:
            print(f"[{number}] {line}", file=sys.stderr)

    for rate in args.rate:
        figures.clear()
        with Lab(args.hosts, rate) as lab:
            command = [sys.executable, __file__, "--as", "rank", *given]
            code = lab.run(
                command, ranks_per_host=args.local, tell=hear, timeout=args.timeout
            ).code
        if code:
            sys.exit(code)
        tables.title(f"{args.hosts} hosts, {args.local} ranks on each, {rate}")
        tables.head(
            *("method", "elements", "ms (quartiles)", "MB over a host's link"),
            "shared memory",
        )
        for each in figures:
            low, _, high = quantiles(each["seconds"], n=4)
            tables.row(
                each["way"],
                f"{each['size']:,}",
                f"{1e3 * median(each['seconds']):.0f} "
                f"({1e3 * low:.0f} to {1e3 * high:.0f})",
                f"{median(each['link']) / 1e6:.2f}",
                "yes" if each["shared"] else "",
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--as", dest="part", default="lab", help=argparse.SUPPRESS)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--local", type=int, default=2, help="ranks on each host")
    parser.add_argument("--rate", nargs="+", default=["1gbit"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[3_000_000, 14_700_000])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=1200.0)
    return parser.parse_args()


if __name__ == "__main__":
    parsed = arguments()
    if parsed.part == "rank":
        rank(parsed)
    else:
        main(parsed, sys.argv[1:])
