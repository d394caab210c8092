"""Training steps of a sharded model in the lab: FSDP2's own HSDP, and thinwire's.

    .venv/bin/python benchmarks/hsdp.py --hosts 2 --local 2 --rate 1gbit 100mbit

A host is a replica, whose ranks shard it over loopback; replicas talk over shaped links
(see docs/reference/lab.md). Every way trains a model of its own, in turns: forward,
backward and SGD. What a host sends over its link is what the kernel counts there. After
the measurement the replicas of each way are compared.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import tables

import thinwire
from thinwire.tools.bench.ranks import gathered, joined, slowest
from thinwire.tools.lab import Lab

LINK = Path("/sys/class/net/eth0/statistics/tx_bytes")
MARK = "figures "
NATIVE = "FSDP2, 2-D mesh"
WAYS: dict[str, dict[str, Any] | None] = {
    NATIVE: None,
    "dense": {"method": "dense"},
    "spardl": {"method": "spardl"},
    "spardl, state.reduce()": {"method": "spardl", "overlap": False},
}


class Way:
    """A sharded model that is trained in one way, and what was seen of it."""

    def __init__(self, label: str, mesh: DeviceMesh, args: argparse.Namespace) -> None:
        self.label, options = label, WAYS[label]
        torch.manual_seed(0)
        layers = [nn.Linear(args.width, args.width) for _ in range(args.layers)]
        self.model = nn.Sequential(*layers)
        over = mesh if options is None else mesh["shard"]
        for layer in layers:
            fully_shard(layer, mesh=over)
        fully_shard(self.model, mesh=over)
        self.reduce: Callable[[], object] = lambda: None
        if options is not None:
            state = thinwire.attach(self.model, mesh=mesh, warn=False, **options)
            if not options.get("overlap", True):
                self.reduce = state.reduce
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.seconds: list[float] = []
        self.link: list[int] = []

    def step(self, inputs: torch.Tensor, *, counted: bool) -> None:
        dist.barrier()
        before, start = int(LINK.read_text()), perf_counter()
        self.model(inputs).square().mean().backward()
        self.reduce()
        self.optimizer.step()
        self.optimizer.zero_grad()
        took = slowest(perf_counter() - start)
        sent = max(gathered(int(LINK.read_text()) - before))
        if counted:
            self.seconds.append(took)
            self.link.append(sent)

    def verify(self, shards: int) -> None:
        """Shards with the same place in their replicas have the same bits."""
        parameters: Any = self.model.parameters()  # DTensors
        held = [each.to_local().detach().view(torch.int32) for each in parameters]
        sums = gathered(tuple(int(each.to(torch.int64).sum()) for each in held))
        for place in range(shards):
            if len(set(sums[place::shards])) > 1:
                raise SystemExit(f"{self.label}: replicas differ")


def rank(args: argparse.Namespace) -> None:
    """Measure on this rank; rank 0 prints the figures."""
    torch.set_num_threads(1)
    with joined() as number:
        shape = (dist.get_world_size() // args.local, args.local)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        ways = [Way(label, mesh, args) for label in WAYS]
        for step in range(args.warm + args.steps):
            generator = torch.Generator().manual_seed(1000 * step + number)
            inputs = torch.randn(args.batch, args.width, generator=generator)
            for way in ways:
                way.step(inputs, counted=step >= args.warm)
        for way in ways:
            way.verify(args.local)
            if number == 0:
                seen = {"way": way.label, "seconds": way.seconds, "link": way.link}
                print(MARK + json.dumps(seen), flush=True)


def main(args: argparse.Namespace) -> None:
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
            command = [sys.executable, __file__, "--as", "rank", *sys.argv[1:]]
            code = lab.run(
                command, ranks_per_host=args.local, tell=hear, timeout=args.timeout
            ).code
        if code:
            sys.exit(code)
        size = args.layers * args.width * (args.width + 1)
        tables.title(
            f"{args.hosts} replicas of {args.local} shards, {rate}, {size:,} parameters"
        )
        tables.head("way", "ms a step (quartiles)", "MB over a host's link")
        for each in figures:
            low, _, high = quantiles(each["seconds"], n=4)
            tables.row(
                each["way"],
                f"{1e3 * median(each['seconds']):.0f} "
                f"({1e3 * low:.0f} to {1e3 * high:.0f})",
                f"{median(each['link']) / 1e6:.2f}",
            )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--as", dest="part", default="lab", help=argparse.SUPPRESS)
    parser.add_argument("--hosts", type=int, default=2, help="replicas")
    parser.add_argument("--local", type=int, default=2, help="shards of each")
    parser.add_argument("--rate", nargs="+", default=["1gbit"])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=600.0)
    return parser.parse_args()


if __name__ == "__main__":
    parsed = arguments()
    if parsed.part == "rank":
        rank(parsed)
    else:
        main(parsed)
