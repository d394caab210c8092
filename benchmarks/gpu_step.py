"""A step of error feedback on a CUDA device, and what it is compared with."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_timing import Times, captured, timed
from thinwire import kernels
from thinwire.codecs.bfloat16 import BFloat16
from thinwire.codecs.elias_fano import EliasFano
from thinwire.codecs.split import Split
from thinwire.kernels import Block
from thinwire.kernels.cuda import mark
from thinwire.kernels.cuda.candidates import Candidates
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

# Without the checksum, which packets in device memory never have.
CODEC = Split(EliasFano(), BFloat16(), checksum=False)
PERIOD = 1 << 16
CHUNK = 1024


class Gradients:
    """Fresh gradients of the same shape."""

    def __init__(self, size: int, spread: float = 1.0) -> None:
        self.scales = torch.randn(-(-size // PERIOD), device="cuda").mul_(spread).exp_()
        self.signs = torch.empty(size, dtype=torch.int8, device="cuda")

    def fill(self, grad: Tensor) -> None:
        grad.exponential_().mul_(self.signs.random_(0, 2).mul_(2).sub_(1))
        whole = grad.numel() // PERIOD * PERIOD
        grad[:whole].view(-1, PERIOD).mul_(self.scales[: whole // PERIOD, None])
        grad[whole:].mul_(self.scales[-1])


class Step:
    """Accumulate, select and subtract, in any number of blocks; encode, if asked."""

    def __init__(self, size: int, density: float, blocks: int = 1) -> None:
        whole = (Block.whole(size),)
        cut = kernels.interleaved_blocks(size, blocks, CHUNK)
        self.blocks = whole if blocks == 1 else cut
        self.counts = [int(b.length * density) for b in self.blocks]
        self.x = torch.zeros(size, device="cuda")
        self.candidates = Candidates(self.x, self.blocks)
        self.candidates.zeroing = False
        self.extracting = True
        self.grad = torch.zeros(size, device="cuda")
        self.chosen: list[kernels.Sparse] = []
        self.packets: list[Packet] = []
        self.encoding = False

    def run(self) -> None:
        self.candidates.accumulate_(self.grad, offset=0, scale=1.0)
        numbers, removing = range(len(self.blocks)), torch.float32
        if not self.extracting:
            removing = None
        self.chosen = self.candidates.select(self.counts, numbers, removing)
        if not self.extracting:
            self.leave()
        if self.encoding:
            self.packets = [
                CODEC.encode(SparseVector(indices, values, block.length))
                for block, (indices, values) in zip(
                    self.blocks, self.chosen, strict=True
                )
            ]

    def leave(self) -> None:
        for block, (indices, values) in zip(self.blocks, self.chosen, strict=True):
            kernels.leave_at_(self.x, indices, values, values, block=block)

    def listed(self) -> list[int]:
        state = self.candidates.buffer.state.view(-1, mark.STATE.value)
        return state[:, mark.COUNT.value].tolist()

    def failures(self) -> int:
        state = self.candidates.buffer.state.view(-1, mark.STATE.value)
        return int(state[:, mark.DENSE.value].sum())

    def verify(self, before: Tensor) -> None:
        for block, k, (indices, values) in zip(
            self.blocks, self.counts, self.chosen, strict=True
        ):
            wanted = kernels.select.reference(before, k, block=block)
            assert torch.equal(indices, wanted[0])
            assert torch.equal(values.view(torch.int32), wanted[1].view(torch.int32))
            kernels.subtract_at_.reference(before, indices, values, block=block)
        assert torch.equal(before.view(torch.int32), self.x.view(torch.int32))

    def verify_packets(self) -> None:
        """Against those of the processor."""
        for block, (indices, values), packet in zip(
            self.blocks, self.chosen, self.packets, strict=True
        ):
            vector = SparseVector(indices.cpu(), values.cpu(), block.length)
            wanted = CODEC.encode(vector)
            assert torch.equal(packet.body.cpu(), wanted.body)


@dataclass
class Case:
    """One size and density: its step in a steady state, and its floor."""

    millions: int
    density: float
    repeats: int
    step: Step
    gradients: Gradients
    floor: float
    dense: int = 0  # steps in which the candidates did not include all selected

    @property
    def name(self) -> str:
        return f"{self.millions} M, {self.density:.1%}"

    def prepare(self) -> None:
        self.dense += self.step.failures()
        self.gradients.fill(self.step.grad)

    def timed(self, replay: Callable[[], object] | None = None) -> Times:
        if replay is None:
            self.prepare()
            self.step.run()
            replay = captured(self.step.run)
        return timed(replay, self.repeats, self.prepare)

    def verify(self, replay: Callable[[], None]) -> None:
        before = self.step.x.clone()
        self.prepare()
        before += self.step.grad
        replay()
        self.step.verify(before)


def steady(
    size: int, density: float, spread: float, warmup: int, blocks: int = 1
) -> tuple[Step, Gradients, Callable[[], None]]:
    step, gradients = Step(size, density, blocks), Gradients(size, spread)
    for _ in range(3):
        gradients.fill(step.grad)
        step.run()
    replay = captured(step.run)
    for _ in range(warmup):
        gradients.fill(step.grad)
        replay()
    return step, gradients, replay


def stock(step: Step) -> Callable[[], object]:
    x, k = step.x.clone(), step.counts[0]

    def run() -> Tensor:
        x.add_(step.grad)
        indices = torch.topk(x.abs(), k, sorted=False).indices
        values = x[indices]
        x[indices] = 0.0
        return values

    return run
