"""A recommendation model with large embeddings: ways to reduce their gradients.

    python benchmarks/embedding.py --ranks 4 --ratings path/to/ratings.dat.gz

Real processes over loopback, which is no slow network: "ms" is what a backward pass
takes there (the slowest rank), "MB" what a rank sends in it, by the counters of the
loopback interface (let nothing else use it), and "wire" what those bytes take at 100
Mbit/s and 1 Gbit/s. Every variant trains its own replica on the same batches, in turns
within one run.

Ratings are lines of "user::film::rating::time", gzipped or not, as MovieTweetings and
MovieLens have them; without a file, Zipf-distributed users and films are drawn.
Verified: replicas agree, and after the last step the parameters of every exact variant
are those of plain DDP.
"""

import argparse
import gzip
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire.collectives import S2, RowCollective
from thinwire.tools.bench.machine import machine


class Variant(NamedTuple):
    """What kind of gradients the embeddings have, and how they are reduced."""

    sparse: bool
    method: str | None = None
    rows: str | RowCollective = "gather"
    options: Mapping[str, object] = MappingProxyType({})
    exact: bool = True


BY_ROW = {"granularity": "row", "density": 1.0}
VARIANTS = {
    "plain DDP, sparse": Variant(sparse=True),
    "plain DDP, dense": Variant(sparse=False),
    "gather": Variant(sparse=True, method="dense", rows="gather"),
    "union": Variant(sparse=True, method="dense", rows="union"),
    "S2, peel": Variant(sparse=True, method="dense", rows="s2"),
    "S2, median": Variant(
        sparse=True, method="dense", rows=S2(decode="median"), exact=False
    ),
    "cheapest": Variant(sparse=True, method="dense", rows="cheapest"),
    "union, dense rows": Variant(sparse=False, method="union", options=BY_ROW),
    "cheapest, dense rows": Variant(sparse=False, method="cheapest", options=BY_ROW),
    "topk 1 %": Variant(
        sparse=False, method="topk", options={"density": 0.01}, exact=False
    ),
}
WARM = 3
RATES = {"100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6}
RATE = 0.05


class Recommender(nn.Module):
    """Neural collaborative filtering: a product of embeddings and a small network."""

    def __init__(self, users: int, films: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=sparse)
        self.films = nn.Embedding(films, width, sparse=sparse)
        self.mix = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.out = nn.Linear(2 * width, 1)

    def forward(self, users: Tensor, films: Tensor) -> Tensor:
        one, other = self.users(users), self.films(films)
        mixed = self.mix(torch.cat([one, other], 1))
        return self.out(torch.cat([one * other, mixed], 1)).squeeze(1)


class Ratings(NamedTuple):
    """Who rated what, how: users and films numbered from 0."""

    users: Tensor
    films: Tensor
    scores: Tensor
    what: str

    def batch(self, size: int, step: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        chosen = torch.randint(len(self.users), (size,), generator=generator)
        return self.users[chosen], self.films[chosen], self.scores[chosen]


def read(path: Path) -> Ratings:
    octets = path.read_bytes()
    text = (gzip.decompress(octets) if path.suffix == ".gz" else octets).decode()
    lines = (line.split("::")[:3] for line in text.splitlines())
    table = np.array(list(lines), dtype=np.float64)
    users, films = (np.unique(table[:, i], return_inverse=True)[1] for i in (0, 1))
    found = (torch.from_numpy(each) for each in (users, films))
    return Ratings(*found, torch.from_numpy(table[:, 2]).float() / 10, path.name)


def drawn(users: int, films: int, count: int) -> Ratings:
    generator = np.random.default_rng(0)
    chosen = []
    for size in (users, films):
        weights = 1.0 / np.arange(1, size + 1)
        chosen.append(generator.choice(size, count, p=weights / weights.sum()))
    scores = torch.from_numpy(generator.random(count, np.float32))
    what = f"Zipf-distributed ratings, {users:,} users and {films:,} films"
    return Ratings(*map(torch.from_numpy, chosen), scores, what)


class Replica:
    """One variant's model, and what its backward passes took."""

    def __init__(self, variant: Variant, ratings: Ratings, width: int) -> None:
        torch.manual_seed(0)
        users, films = int(ratings.users.max()) + 1, int(ratings.films.max()) + 1
        module = Recommender(users, films, width, sparse=variant.sparse)
        self.model = DDP(module)
        self.exact = variant.exact
        self.state = None
        if variant.method is not None:
            self.state = thinwire.attach(
                self.model, variant.method, sparse=variant.rows, **variant.options
            )
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE)
        self.seconds: list[float] = []
        self.sent: list[float] = []

    def step(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        users, films, scores = batch
        self.optimizer.zero_grad()
        loss = (self.model(users, films) - scores).square().mean()
        dist.barrier()
        before, start = loopback_bytes(), perf_counter()
        loss.backward()
        mine = torch.tensor(perf_counter() - start)
        dist.barrier()
        self.sent.append((loopback_bytes() - before) / dist.get_world_size())
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        self.seconds.append(mine.item())
        self.optimizer.step()


def loopback_bytes() -> int:
    """What was sent over loopback so far, headers included."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise RuntimeError("no loopback interface in /proc/net/dev")


def verify(replicas: dict[str, Replica]) -> None:
    truth = replicas["plain DDP, sparse"].model.module.state_dict()
    for name, replica in replicas.items():
        if replica.state is not None:
            replica.state.check_replicas()
        for key, value in replica.model.module.state_dict().items():
            gap = (value - truth[key]).abs().max().item()
            assert not replica.exact or gap < 1e-5, f"{name}: {key} is off by {gap:.1e}"


def work(rank: int, args: argparse.Namespace, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    ratings = read(args.ratings) if args.ratings else drawn(30_000, 15_000, 500_000)
    replicas = {
        name: Replica(variant, ratings, args.width)
        for name, variant in VARIANTS.items()
    }
    for step in range(WARM + args.steps):
        batch = ratings.batch(args.batch, step, rank)
        for replica in replicas.values():
            replica.step(batch)
    verify(replicas)
    if rank == 0:
        show(replicas, ratings, args)
    dist.barrier()
    dist.destroy_process_group()


def show(
    replicas: dict[str, Replica], ratings: Ratings, args: argparse.Namespace
) -> None:
    module = next(iter(replicas.values())).model.module
    elements = sum(p.numel() for p in module.parameters())
    users, films, _ = ratings.batch(args.batch, 0, 0)
    touched = len(users.unique()) + len(films.unique())
    rows = module.users.num_embeddings + module.films.num_embeddings
    print(f"{machine()}; {args.ranks} processes of one thread, Gloo over loopback")
    print(f"{ratings.what}: {len(ratings.users):,} ratings; {elements:,} parameters")
    print(
        f"a batch of {args.batch} touches {touched:,} of {rows:,} rows of {args.width}"
    )
    print(f"{args.steps} steps; load {os.getloadavg()[0]:.1f}\n")
    rates = [f"wire at {name}, ms" for name in RATES]
    print("| way | ms | quartiles | MB | " + " | ".join(rates) + " |")
    print("|" + " --- |" * (4 + len(rates)))
    for name, replica in replicas.items():
        times = [1e3 * each for each in replica.seconds[WARM:]]
        low, _, high = quantiles(times, n=4)
        sent = median(replica.sent[WARM:])
        wire = [f"{1e3 * sent / rate:.1f}" for rate in RATES.values()]
        cells = (
            f"{median(times):.1f}",
            f"{low:.1f} to {high:.1f}",
            f"{sent / 1e6:.3f}",
        )
        print(f"| {' | '.join((name, *cells, *wire))} |")
    print("\nverified: replicas agree; exact ways end with plain DDP's parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ratings", type=Path, help="lines of user::film::rating::...")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--batch", type=int, default=256, help="ratings a rank and step"
    )
    parser.add_argument("--width", type=int, default=64, help="of an embedding")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    torch.multiprocessing.spawn(work, (args, port), nprocs=args.ranks)


if __name__ == "__main__":
    main()
