"""What it costs that a backward pass can be undone to the bit.

    python benchmarks/undo.py --parameters 14_700_000 --ranks 4 --repeats 60

Accumulating into every unit but a pass's last also copies its residual. Real processes
over loopback run passes with and without these copies in turns, on the same model, with
gradients that cost next to nothing to compute. Verified: a skipped pass with copies
leaves no trace in the state, one without them does.
"""

import argparse
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median, quantiles
from time import perf_counter, process_time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import spawn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire.hooks.backward_pass import BackwardPass
from thinwire.hooks.ddp import DDPState
from thinwire.tools.bench.machine import machine

WARM = 8
LAYERS = 60
FIGURES = ("backward, ms", "processor time, ms", "accumulating, ms")


class Given(nn.Module):
    """A model whose gradients are given as its input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        layers = [nn.Parameter(torch.zeros(size // LAYERS)) for _ in range(LAYERS)]
        self.layers = nn.ParameterList(layers)

    def forward(self, gradients: list[Tensor]) -> Tensor:
        pairs = zip(self.layers, gradients, strict=True)
        return torch.stack([(layer * given).sum() for layer, given in pairs]).sum()


@contextmanager
def copying(*, wanted: bool) -> Iterator[None]:
    """Passes within copy as they do, or never."""
    usual = BackwardPass._may_fail_later  # noqa: SLF001 - there is no such option
    if not wanted:
        BackwardPass._may_fail_later = False  # type: ignore[assignment] # noqa: SLF001
    try:
        yield
    finally:
        BackwardPass._may_fail_later = usual  # type: ignore[method-assign] # noqa: SLF001


def one_pass(model: DDP, state: DDPState, given: list[Tensor]) -> Tensor:
    """The figures of a pass: the mean over ranks."""
    model.zero_grad(set_to_none=False)
    loss = model(given)
    before = state.metrics()["accumulate_ms"]
    dist.barrier()
    wall, used = perf_counter(), process_time()
    loss.backward()
    wall, used = perf_counter() - wall, process_time() - used
    spent = state.metrics()["accumulate_ms"] - before
    figures = torch.tensor([1e3 * wall, 1e3 * used, spent])
    dist.all_reduce(figures)
    return figures / dist.get_world_size()


def trace_of(model: DDP, state: DDPState, given: list[Tensor]) -> bool:
    """Whether a pass whose last gradient is bad changes the residuals."""

    def residual() -> list[Tensor]:
        (entries,) = [v for k, v in state.state_dict().items() if k.startswith("rank ")]
        return [each.clone() for each in entries["residual"].values()]

    model.zero_grad()
    before = residual()
    bad = [given[0] * torch.inf, *given[1:]]
    with suppress(ValueError):  # nothing was kept that could be undone
        model(bad).backward()
    with suppress(thinwire.InconsistentStateError):
        return not all(map(torch.equal, before, residual()))
    return True


def work(rank: int, args: argparse.Namespace, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    model = DDP(Given(args.parameters))
    state = thinwire.attach(model, "spardl", density=0.01)
    size = args.parameters // LAYERS
    figures: dict[bool, list[Tensor]] = {True: [], False: []}
    for repeat in range(WARM + args.repeats):
        generator = torch.Generator().manual_seed(1000 * repeat + rank)
        given = [torch.randn(size, generator=generator) for _ in range(LAYERS)]
        for wanted, found in figures.items():
            with copying(wanted=wanted):
                found.append(one_pass(model, state, given))
    with copying(wanted=True):
        assert not trace_of(model, state, given), "a skipped pass left a trace"
    with copying(wanted=False):
        assert trace_of(model, state, given), "copies are of no use"
    if rank == 0:
        show(args, *(torch.stack(each[WARM:]) for each in figures.values()))
    dist.barrier()
    dist.destroy_process_group()


def show(args: argparse.Namespace, with_: Tensor, without: Tensor) -> None:
    print(machine())
    print(f"{args.parameters:,} parameters, {args.ranks} ranks, loopback", end=", ")
    print(f"{args.repeats} passes of spardl at 1 % each, in turns; medians")
    print(f"{'':22}{'with':>8}{'without':>9}{'difference':>12}{'quartiles':>18}")
    for number, name in enumerate(FIGURES):
        one, other = with_[:, number].tolist(), without[:, number].tolist()
        gaps = [a - b for a, b in zip(one, other, strict=True)]
        low, _, high = quantiles(gaps, n=4)
        row = f"{name:22}{median(one):8.2f}{median(other):9.2f}{median(gaps):12.2f}"
        print(f"{row}{low:10.2f} to {high:.2f}")
    print("verified: a skipped pass leaves no trace with copies, and one without")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=14_700_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=60)
    args = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    spawn(work, (args, port), nprocs=args.ranks)


if __name__ == "__main__":
    main()
