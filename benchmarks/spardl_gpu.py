"""Whole SparDL reductions by processes that share one CUDA device, over Gloo.

    python benchmarks/spardl_gpu.py --ranks 4,8 --size 100e6 --density 0.01

Every rank has its own residual and fresh gradients on the device (Laplace, each run of
65 536 elements with a scale of its own). Timed from the gradient on the device to its
mean there, all ranks from one barrier on; "wall" is of the slowest rank, medians over
the steps. Dense is the library's all-reduce through pinned memory in the same setting,
because Gloo on tensors of a shared device aborts; its mean is written back too.

Phases come from a second run of as many steps in which every kernel is waited for, so
that they add up to more than the wall: they say where time goes, not how much.
"wait" is in the group: copies to the processor, Gloo, and other ranks.

Verified on whole numbers: what is delivered and what remains add up exactly to what
there was, and all ranks hold the same bits, then and in the last step. Shared by so
many, the device takes as many times as long for what each rank does on it.
"""

import argparse
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire import kernels
from thinwire.codecs import BFloat16, EliasFano, Split, Timed
from thinwire.collectives import Dense, SparDL
from thinwire.groups import Counted
from thinwire.groups.torch import TorchGroup
from thinwire.kernels import dispatch
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

PERIOD = 1 << 16
WARM = 3
PHASES = {
    "guard": ("magnitudes",),
    "accumulate": ("accumulate_",),
    "select": ("select", "take", "split", "merge_split"),
    "encode": ("encode",),
    "decode": ("decode",),
    "merge": ("merge_add", "add_", "return_at_", "leave_at_", "join", "restore_"),
    "write": ("write_mean_",),
}


class Gradients:
    """Fresh gradients of the same shape, and whole numbers."""

    def __init__(self, size: int, rank: int, device: str) -> None:
        torch.manual_seed(0)
        self._scales = torch.randn(-(-size // PERIOD), device=device).exp_()
        torch.manual_seed(1 + rank)

    def fill_(self, grad: Tensor) -> None:
        grad.exponential_()
        whole = grad.numel() // PERIOD * PERIOD
        for part in grad[:whole].view(-1, PERIOD).split(512):
            signs = torch.randint_like(part, 0, 2).mul_(2).sub_(1)
            part.mul_(signs)
        grad[:whole].view(-1, PERIOD).mul_(self._scales[: whole // PERIOD, None])

    def fill_whole_(self, grad: Tensor) -> None:
        """Small enough for exact sums, with many ties."""
        grad.random_(-8, 9)
        grad[:: 1 << 7] *= 31


class Method:
    """A pipeline, what it remembers, and how long it took."""

    def __init__(
        self, pipeline: Pipeline, grad: Tensor, group: TorchGroup, *, waiting: bool
    ) -> None:
        self.stopwatch: kernels.Stopwatch = {}
        self.group = Counted(group)
        codec = pipeline.codec
        timed = None if codec is None else Timed(codec, self.stopwatch)
        self.pipeline = Pipeline(pipeline.collective, timed if waiting else codec)
        self.state = self.pipeline.init(Layout.flat(grad.numel()), grad.device)
        self.waiting = waiting
        self.walls: list[float] = []
        self.phases: list[dict[str, float]] = []

    def reduce_(self, grad: Tensor) -> None:
        self.stopwatch.clear()
        self.group.reset()
        if self.waiting:
            with kernels.timed_primitives(self.stopwatch):
                self.pipeline.reduce_([grad], self.group, self.state)
        else:
            self.pipeline.reduce_([grad], self.group, self.state)

    def step(self, grad: Tensor) -> None:
        synchronize()
        dist.barrier()
        start = perf_counter()
        self.reduce_(grad)
        synchronize()
        self.walls.append(perf_counter() - start)
        self.phases.append(
            {
                phase: sum(self.stopwatch.get(part, 0.0) for part in parts)
                for phase, parts in PHASES.items()
            }
            | {"wait": self.group.traffic.wait, "MB sent": self.group.traffic.sent}
        )


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def waited_for() -> Iterator[None]:
    """Make every primitive wait for the device, so that a stopwatch sees its time."""
    recorded = dispatch._recorded  # noqa: SLF001

    @contextmanager
    def recorded_and_waited(name: str) -> Iterator[None]:
        with recorded(name):
            yield
            synchronize()

    dispatch._recorded = recorded_and_waited  # noqa: SLF001
    try:
        yield
    finally:
        dispatch._recorded = recorded  # noqa: SLF001


def work(rank: int, args: argparse.Namespace, ranks: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    group = TorchGroup.own(device=args.device)
    size = int(args.size)
    gradients = Gradients(size, rank, args.device)
    pipelines = {
        "SparDL": Pipeline(SparDL(args.density), Split(EliasFano(), BFloat16())),
        "dense": Pipeline(Dense()),
    }
    grad = torch.empty(size, device=args.device)
    results = {}
    for name, pipeline in pipelines.items():
        # Sums of all that there was take long: a part will do.
        verify(pipeline, gradients, grad[:20_000_000], group)
        steps = args.steps if pipeline.codec else max(args.steps // 3, 2)
        for waiting in (False, True) if pipeline.codec else (False,):
            method = Method(pipeline, grad, group, waiting=waiting)
            with waited_for() if waiting else nullcontext():
                for _ in range(WARM + steps):
                    gradients.fill_(grad)
                    method.step(grad)
            check_alike(grad)
            results[name, waiting] = gathered(method)
    if rank == 0:
        show(results, args, ranks)
    dist.barrier()
    dist.destroy_process_group()


def verify(
    pipeline: Pipeline, gradients: Gradients, grad: Tensor, group: TorchGroup
) -> None:
    """Two steps of whole numbers, of which nothing may get lost."""
    state = pipeline.init(Layout.flat(grad.numel()), grad.device)
    for _ in range(2):
        gradients.fill_whole_(grad)
        before = summed(grad) + summed(state.memory.x.whole())
        pipeline.reduce_([grad], group, state)
        check_alike(grad)
        total = (grad.cpu() * group.size).round_()
        assert torch.equal(total + summed(state.memory.x.whole()), before), (
            "not conserved"
        )


def summed(vector: Tensor) -> Tensor:
    total = vector.cpu().clone()
    dist.all_reduce(total)
    return total


def check_alike(grad: Tensor) -> None:
    mine = grad.cpu()
    theirs = mine.clone()
    dist.broadcast(theirs, src=0)
    assert torch.equal(mine, theirs), "ranks got different means"


def gathered(method: Method) -> tuple[list[float], dict[str, float]]:
    """The slowest rank's time of each step, and the mean of each phase."""
    walls = torch.tensor(method.walls[WARM:], dtype=torch.float64)
    dist.all_reduce(walls, dist.ReduceOp.MAX)
    phases = {}
    for phase in method.phases[0]:
        times = [each[phase] for each in method.phases[WARM:]]
        mean = torch.tensor(median(times), dtype=torch.float64)
        dist.all_reduce(mean)
        phases[phase] = mean.item() / dist.get_world_size()
    return walls.tolist(), phases


def show(
    results: dict[tuple[str, bool], tuple[list[float], dict[str, float]]],
    args: argparse.Namespace,
    ranks: int,
) -> None:
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    print(f"\n{name}, torch {torch.__version__}, {os.cpu_count()} cores")
    print(f"{ranks} ranks, {int(args.size):,} float32, density {args.density:g}; ms")
    dense, _ = results["dense", False]
    for (method, waiting), (walls, phases) in results.items():
        said = f"{method}{', every kernel waited for' if waiting else ''}"
        line = f"  {said:36} {1e3 * median(walls):8.2f}"
        line += f" (from {1e3 * min(walls):.2f} to {1e3 * max(walls):.2f})"
        line += f", sent {phases.pop('MB sent') / 1e6:.2f} MB"
        if not waiting and method != "dense":
            line += f", {median(dense) / median(walls):.1f} times as fast as dense"
        print(line)
        if waiting:
            wait = phases.pop("wait")
            spent = "".join(f"{p} {1e3 * t:.2f}, " for p, t in phases.items())
            print(f"    {spent}wait {1e3 * wait:.2f}")
    print(
        "  verified: whole numbers conserved exactly, all ranks identical", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--size", type=float, default=100e6)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    for ranks in map(int, args.ranks.split(",")):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        torch.multiprocessing.spawn(work, (args, ranks, port), nprocs=ranks)


if __name__ == "__main__":
    main()
