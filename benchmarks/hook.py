"""The cost of the hook: backward passes of plain DDP, and of DDP with a method.

    python benchmarks/hook.py --parameters 10_000_000 --ranks 2 --repeats 15

Real processes over loopback, which is no slow network: this measures the processor's
share of a reduction, not what compression saves. Every variant trains its own replica
of one model on the same batches, in turns within one run; times are of `backward` on
the slowest rank. Verified: dense gives DDP's gradients bit for bit, replicas agree, and
delivered plus residual add up to what DDP delivered.
"""

import argparse
import os
from statistics import median, quantiles
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire.tools.bench.machine import machine

VARIANTS: dict[str, tuple[str, dict[str, object]] | None] = {
    "plain DDP": None,
    "dense": ("dense", {}),
    "bf16": ("bf16", {}),
    "topk 1 %": ("topk", {"density": 0.01}),
    "topk 1 %, scope model": ("topk", {"density": 0.01, "scope": "model"}),
    "topk 1 %, unchecked": ("topk", {"density": 0.01, "on_nonfinite": "unchecked"}),
}
WARM = 5
PHASES = ("guard", "accumulate", "select", "encode", "merge", "write", "wait")


class Variant:
    """One replica of the model, and the times of its backward passes."""

    def __init__(self, width: int, depth: int, name: str) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(width, width, bias=False) for _ in range(depth)]
        self.model = DDP(nn.Sequential(*layers))
        method = VARIANTS[name]
        self.state = None
        if method is not None:
            self.state = thinwire.attach(self.model, method[0], **method[1])
        self.seconds: list[float] = []
        self.delivered: Tensor | None = None

    def step(self, batch: Tensor) -> None:
        self.model.zero_grad(set_to_none=False)
        loss = self.model(batch).square().mean()
        dist.barrier()
        start = perf_counter()
        loss.backward()
        mine = torch.tensor(perf_counter() - start)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        self.seconds.append(mine.item())
        gradient = torch.cat([p.grad.view(-1) for p in self.model.parameters()])
        self.delivered = (
            gradient if self.delivered is None else self.delivered.add_(gradient)
        )

    def residual(self) -> Tensor:
        """The mean over ranks of what is still remembered."""
        (entries,) = [
            entries
            for key, entries in self.state.state_dict().items()
            if key.startswith("rank ")
        ]
        residual = entries.get("residual", {})
        mean = torch.cat(
            [
                residual.get(name, torch.zeros_like(p)).reshape(-1)
                for name, p in self.model.module.named_parameters()
            ]
        )
        dist.all_reduce(mean)
        return mean / dist.get_world_size()


def verify(variants: dict[str, Variant]) -> None:
    truth = variants["plain DDP"].delivered
    assert torch.equal(variants["dense"].delivered, truth), "dense is not plain DDP"
    for name, variant in variants.items():
        if variant.state is None:
            continue
        variant.state.check_replicas()
        gap = (variant.delivered + variant.residual() - truth).norm() / truth.norm()
        assert gap < 1e-5, f"{name} lost {gap:.1e} of the gradient"


def work(rank: int, args: argparse.Namespace, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    width = int((args.parameters / args.depth) ** 0.5)
    variants = {name: Variant(width, args.depth, name) for name in VARIANTS}
    start = {}
    for repeat in range(WARM + args.repeats):
        generator = torch.Generator().manual_seed(1000 * repeat + rank)
        batch = torch.randn(4, width, generator=generator)
        for name, variant in variants.items():
            if repeat == WARM and variant.state is not None:
                start[name] = variant.state.metrics()
            variant.step(batch)
    verify(variants)
    if rank == 0:
        show(variants, start, args, width * width * args.depth)
    dist.barrier()
    dist.destroy_process_group()


def show(
    variants: dict[str, Variant],
    start: dict[str, dict[str, float]],
    args: argparse.Namespace,
    size: int,
) -> None:
    print(machine())
    print(f"{size:,} parameters, {args.ranks} ranks, loopback, {args.repeats} steps")
    print("ms of backward on the slowest rank; ms per step of its phases on rank 0")
    base = median(variants["plain DDP"].seconds[WARM:])
    print(f"{'':24}{'median':>8}{'iqr':>8}{'ratio':>7}{'kB/step':>9}  ", end="")
    print("".join(f"{phase:>11}" for phase in PHASES))
    for name, variant in variants.items():
        times = variant.seconds[WARM:]
        low, _, high = quantiles(times, n=4)
        row = f"{name:24}{1e3 * median(times):8.1f}{1e3 * (high - low):8.1f}"
        row += f"{median(times) / base:7.2f}"
        if variant.state is not None:
            now = variant.state.metrics()
            spent = {key: (now[key] - start[name][key]) / args.repeats for key in now}
            row += f"{spent['bytes_sent'] / 1e3:9.0f}  "
            row += "".join(f"{spent[f'{phase}_ms']:11.2f}" for phase in PHASES)
        print(row)
    print("verified: dense equals DDP bit for bit, replicas agree, nothing is lost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    del store
    torch.multiprocessing.spawn(work, (args, port), nprocs=args.ranks)


if __name__ == "__main__":
    main()
