"""The kernels of a CUDA device against its memory, and against torch.

    python benchmarks/kernels_gpu.py --sizes 25 100 350 --densities 0.01 0.001

A step accumulates without the zeroing of the gradient, extracts candidates, and takes
from all blocks, captured in a CUDA graph and replayed on fresh gradients (Laplace,
each run of 65 536 elements with a scale of its own, lognormal), after so many steps of
error feedback that the residual is steady. Before every replay 256 MB are overwritten,
so the cache is cold. The floor is 12 bytes per element at the bandwidth of a copy in
the same run. The peer is add, `torch.topk`, gather and zero. Times are medians in
microseconds, with the quartiles. The last selection of every case is compared with the
reference, bit for bit, and so is what remains. Encoding is a codec's: the whole packet,
header and padding included, which is compared with the processor's.

`--parts sketch` and `--parts lists` measure these alone: count-sketches next to a copy,
and lists merged, and their values coded by level. The first million elements of every
sketch are compared with the reference, and all lists.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch
import triton
from torch import Tensor

from thinwire import kernels
from thinwire.codecs.bfloat16 import BFloat16
from thinwire.codecs.elias_fano import EliasFano, low_bits
from thinwire.codecs.split import Split
from thinwire.kernels import Block, Hashes
from thinwire.kernels.cuda import elias_fano, mark
from thinwire.kernels.cuda.candidates import Candidates
from thinwire.kernels.trees import added_up
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

# Without the checksum, which packets in device memory never have.
CODEC = Split(EliasFano(), BFloat16(), checksum=False)
PERIOD = 1 << 16
CHUNK = 1024

# Ratios to the floor, by millions of elements and density.
STEP = {
    (25, 0.01): 1.45,
    (100, 0.01): 1.28,
    (350, 0.01): 1.25,
    (25, 0.001): 1.30,
    (100, 0.001): 1.12,
    (350, 0.001): 1.08,
}
BUSY = 1.45
FASTER = 6.0
ENCODING = {25: 0.06, 100: 0.03, 350: 0.03}
DECODING = {25: 8.0, 100: 16.0, 350: 50.0}
BLOCKS = 0.06
MERGING = {250_000: 45.0, 1_000_000: 135.0}
SKETCH_ROWS = (3, 5)
SKETCH_BLOCKS = (1024, 64, 1)
CHECKED = 1_000_003

missed: list[str] = []


@dataclass
class Times:
    """Microseconds of one thing, many times."""

    every: list[float]

    @property
    def median(self) -> float:
        return median(self.every)

    def __str__(self) -> str:
        low, _, high = quantiles(self.every, n=4)
        return f"{self.median:8.1f} ({low:.0f}-{high:.0f})"


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


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """The same work as a graph; it must have run before."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(
    run: Callable[[], object],
    repeats: int,
    prepare: Callable[[], object] = lambda: None,
    *,
    cold: bool = True,
) -> Times:
    spoiler = torch.empty(1 << 26, device="cuda") if cold else None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    every = []
    for _ in range(repeats):
        prepare()
        if spoiler is not None:
            spoiler.fill_(1.0)
        start.record()
        run()
        end.record()
        end.synchronize()
        every.append(1e3 * start.elapsed_time(end))
    return Times(every)


def in_a_row(run: Callable[[], object], times: int = 20) -> Times:
    """One of many in a row, in one graph: the cache warm, no launch in the way."""
    run()
    replay = captured(lambda: [run() for _ in range(times)])
    found = timed(replay, 9, cold=False)
    return Times([each / times for each in found.every])


def judge(name: str, value: float, limit: float, *, least: bool = False) -> str:
    good = value >= limit if least else value <= limit
    if not good:
        missed.append(f"{name}: {value:.3g} where {limit:.3g} is the aim")
    return f"{'ok' if good else 'MISSED'} (aim {limit:g})"


def floor_of(size: int, repeats: int) -> float:
    source, target = (torch.rand(size, device="cuda") for _ in range(2))
    # Where memory lies makes a difference, by chance: the better of two counts.
    copying = min(
        timed(lambda: target.copy_(source), repeats).median,
        timed(lambda: source.copy_(target), repeats).median,
    )
    return 1.5 * copying  # a copy moves 8 bytes per element, a step 12


@dataclass
class Case:
    """One size and density: its step in a steady state, and its floor."""

    millions: int
    density: float
    repeats: int
    step: Step
    gradients: Gradients
    floor: float
    dense: int = 0  # steps whose candidates did not tell the answer

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


def measure(millions: int, density: float, options: argparse.Namespace) -> float:
    size = millions * 1_000_000
    floor = floor_of(size, options.repeats)
    step, gradients, replay = steady(size, density, 1.0, options.warmup)
    case = Case(millions, density, options.repeats, step, gradients, floor)
    times = case.timed(replay)
    case.verify(replay)
    ratio, listed = times.median / floor, step.listed()[0] / step.counts[0]
    aim = STEP.get((millions, density), 9.0)
    verdict = judge(f"step, {case.name}", ratio, aim)
    print(
        f"{case.name}: floor {floor:.1f}, step {times}, x{ratio:.3f} {verdict}; ",
        end="",
    )
    print(f"candidates {listed:.2f} k, {case.dense} dense")
    measure_encoding(case, replay)
    if density == 0.01:
        measure_variants(case)
        measure_decoding(case)
    peer = timed(stock(step), max(options.repeats // 3, 4), case.prepare)
    faster = peer.median / times.median
    verdict = judge(f"faster than torch, {case.name}", faster, FASTER, least=True)
    print(f"  add, topk, gather, zero {peer}, {faster:.1f} times as long {verdict}")
    return times.median


def measure_encoding(case: Case, replay: Callable[[], None]) -> None:
    case.step.encoding = True
    case.prepare()
    case.step.run()
    encoding = captured(case.step.run)
    case.step.encoding = False
    # In turns: a device that gets warm gets slower.
    turns = [(case.timed(replay), case.timed(encoding)) for _ in range(3)]
    case.step.verify_packets()
    without, times = (
        Times([each for turn in column for each in turn.every])
        for column in zip(*turns, strict=True)
    )
    share = times.median / without.median - 1
    limit = ENCODING.get(case.millions, 1.0)
    verdict = judge(f"encoding, {case.name}", share, limit)
    print(f"  with Elias-Fano and bf16 {times}, {share:+.1%} {verdict}")


def measure_variants(case: Case) -> None:
    """The same step without a graph, without extraction, and with zeroing."""
    step, floor = case.step, case.floor
    times = case.timed(step.run)
    print(f"  eager {times}, x{times.median / floor:.3f}")
    step.extracting = False
    times = case.timed()
    print(f"  select, then leave_at_ {times}, x{times.median / floor:.3f}")
    step.extracting = step.candidates.zeroing = True
    times = case.timed()
    print(f"  zeroing the gradient {times}, x{times.median / floor:.3f}", end="")
    print(f" (x{times.median / floor * 0.75:.3f} of 16 bytes)")
    step.candidates.zeroing = False


def measure_decoding(case: Case) -> None:
    """A packet to indices and values, and the mean of it into a dense vector."""
    step, (indices, values) = case.step, case.step.chosen[0]
    size, nnz = step.x.numel(), len(indices)
    low = low_bits(size, nnz)
    section = kernels.encode_elias_fano(indices, size, low)
    section = torch.cat([section, section.new_zeros(-len(section) % 8)])
    halves = kernels.to_bfloat16(values)

    def decode() -> tuple[Tensor, Tensor]:
        found = elias_fano.read(section, size, nnz, low=low, step=1)[0]
        return found, halves.float()

    def write() -> None:
        kernels.write_mean_([step.grad], indices, values, ranks=4)

    assert torch.equal(decode()[0], indices)
    times = in_a_row(decode)
    limit = DECODING.get(case.millions, 1e9)
    verdict = judge(f"decoding, {case.millions} M", times.median, limit)
    print(f"  decoding a packet {times} {verdict}")
    write()
    print(f"  writing the mean into zeros {timed(captured(write), case.repeats)}")


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


def measure_busy(options: argparse.Namespace) -> None:
    size = 100_000_000
    floor = floor_of(size, options.repeats)
    step, gradients, replay = steady(size, 0.01, 0.0, options.warmup)
    times = timed(replay, options.repeats, lambda: gradients.fill(step.grad))
    ratio = times.median / floor
    verdict = judge("every tile busy, 100 M, 1 %", ratio, BUSY)
    print(f"every tile busy, 100 M, 1 %: {times}, x{ratio:.3f} {verdict}")


def measure_blocks(one: float, options: argparse.Namespace) -> None:
    step, gradients, replay = steady(10**8, 0.01, 1.0, options.warmup, blocks=8)
    case = Case(100, 0.01, options.repeats, step, gradients, 0.0)
    times = case.timed(replay)
    case.verify(replay)
    share = times.median / one - 1
    verdict = judge("8 blocks, 100 M, 1 %", share, BLOCKS)
    print(f"8 interleaved blocks, 100 M, 1 %: {times}, {share:+.1%} {verdict}", end="")
    print(f"; {case.dense} dense")


def measure_merge(nnz: int, limit: float) -> None:
    def drawn() -> kernels.Sparse:
        lots = torch.rand(100 * nnz, device="cuda")
        return kernels.select(lots, nnz)[0], torch.randn(nnz, device="cuda")

    left, right = drawn(), drawn()
    wanted = kernels.split.reference(*kernels.merge_add.reference(*left, *right), nnz)
    kept, others = kernels.merge_split(left, right, nnz)
    there = others[0] >= 0
    found = (*kept, others[0][there], others[1][there])
    for a, b in zip(found, (*wanted[0], *wanted[1]), strict=True):
        assert torch.equal(a, b)
    times = in_a_row(lambda: kernels.merge_split(left, right, nnz), 5)
    verdict = judge(f"merge and split, {nnz}", times.median, limit)
    print(f"merge and split of two lists of {nnz:,}: {times} {verdict}")
    alone = timed(
        lambda: kernels.split(*kernels.merge_add(*left, *right), nnz), 9, cold=False
    )
    print(f"  without holes, which waits for the length: {alone}")


def measure_union(nnz: int, ranks: int) -> None:
    """The sum of as many lists as there are ranks: waits once for its length."""
    lists = []
    for _ in range(ranks):
        lots = torch.rand(100 * nnz, device="cuda")
        lists.append((kernels.select(lots, nnz)[0], torch.randn(nnz, device="cuda")))
    with kernels.by_reference():
        wanted = kernels.merge_all(lists)
    for a, b in zip(kernels.merge_all(lists), wanted, strict=True):
        assert torch.equal(a, b)
    times = timed(lambda: kernels.merge_all(lists), 15, cold=False)
    by_pairs = timed(
        lambda: added_up(lists, lambda a, b: kernels.merge_add(*a, *b)), 15, cold=False
    )
    print(f"sum of {ranks} lists of {nnz:,}: {times}; pair by pair {by_pairs}")


def measure_sketch(millions: int, density: float, repeats: int) -> None:
    """Encode a vector into ten columns for each element kept, and estimate all of it.

    The floor is the bytes that must move, once each: the vector and the table.
    """
    size = millions * 1_000_000
    columns = int(10 * density * size)
    x, out = torch.randn(size, device="cuda"), torch.empty(size, device="cuda")
    copying = floor_of(size, repeats) / 1.5
    print(f"sketches, {millions} M, {columns:,} columns; a copy {copying:.1f}")
    for rows in SKETCH_ROWS:
        floor = copying * (size + rows * columns) / (2 * size)
        for block in SKETCH_BLOCKS:
            hashes = Hashes(rows, columns, min(block, columns))
            verify_sketch(x[:CHECKED], hashes)
            table = kernels.encode_sketch(x, hashes)
            encode = captured(lambda h=hashes: kernels.encode_sketch(x, h))
            encoding = timed(encode, repeats)
            kernels.estimate_sketch_(out, table, hashes)
            given = (out, table, hashes)
            estimate = captured(lambda g=given: kernels.estimate_sketch_(*g))
            estimating = timed(estimate, repeats)
            print(
                f"  {rows} rows, blocks of {hashes.block}: floor {floor:.1f}, "
                f"encode {encoding}, x{encoding.median / floor:.2f}; "
                f"estimate {estimating}, x{estimating.median / floor:.2f}"
            )


def verify_sketch(x: Tensor, hashes: Hashes) -> None:
    table = kernels.encode_sketch(x, hashes)
    found, wanted = torch.empty_like(x), torch.empty_like(x)
    kernels.estimate_sketch_(found, table, hashes)
    kernels.estimate_sketch_.reference(wanted, table, hashes, mean=False)
    again = kernels.encode_sketch.reference(x, hashes)
    for a, b in ((table, again), (found, wanted)):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def measure_levels(nnz: int) -> None:
    values = torch.empty(nnz, device="cuda").exponential_()
    values *= torch.randn(nnz, device="cuda").sign()
    for bits in (3, 4, 8):
        section = kernels.encode_log(values, bits)
        assert torch.equal(section, kernels.encode_log.reference(values, bits))
        times = in_a_row(lambda bits=bits: kernels.encode_log(values, bits), 5)
        slow = timed(
            lambda b=bits: kernels.encode_log.reference(values, b), 9, cold=False
        )
        print(f"{nnz:,} values in {bits} bits {times}, in plain torch {slow}")


def check_hard_cases() -> None:
    """What is hard on a selection, by candidates and without."""
    size = 3_000_017
    vectors = {
        "ties": torch.randint(-3, 4, (size,), device="cuda").float(),
        "zero": torch.zeros(size, device="cuda"),
        "few": torch.zeros(size, device="cuda").index_fill_(
            0, torch.arange(0, size, 9973, device="cuda"), -1.5
        ),
        "normal": torch.randn(size, device="cuda"),
        "denormal": torch.randn(size, device="cuda") * 1e-42,
    }
    vectors["not finite"] = vectors["normal"].clone()
    vectors["not finite"][::70] = float("nan")
    vectors["not finite"][1::31] = float("-inf")
    vectors["bf16"] = vectors["normal"].bfloat16().float()
    for name, x in vectors.items():
        for cut in (
            (Block.whole(size),),
            kernels.contiguous_blocks(size, 2),
            kernels.interleaved_blocks(size, 2, CHUNK),
        ):
            for k in (1, 1000, size // 100, size // 9, size // 2, cut[0].length - 1):
                grad, y = x.clone(), torch.zeros_like(x)
                count = min(k, cut[-1].length)
                candidates = Candidates(y, cut)
                candidates.accumulate_(grad, offset=0, scale=1.0)
                assert not grad.any()
                counts, numbers = [count] * len(cut), range(len(cut))
                found = candidates.select(counts, numbers, None)
                for block, (indices, values) in zip(cut, found, strict=True):
                    wanted = kernels.select.reference(y, count, block=block)
                    same = (
                        torch.equal(indices, wanted[0]),
                        torch.equal(
                            values.view(torch.int32), wanted[1].view(torch.int32)
                        ),
                    )
                    assert all(same), (name, count, block)
    print("hard cases agree with the reference, bit for bit")


def steps(options: argparse.Namespace) -> None:
    check_hard_cases()
    one = 0.0
    for millions in options.sizes:
        for density in options.densities:
            time = measure(millions, density, options)
            if (millions, density) == (100, 0.01):
                one = time
            torch.cuda.empty_cache()
    if one:
        measure_busy(options)
        measure_blocks(one, options)


def lists(options: argparse.Namespace) -> None:
    del options
    for nnz, limit in MERGING.items():
        measure_merge(nnz, limit)
        measure_levels(nnz)
        for ranks in (2, 4, 8):
            measure_union(nnz, ranks)


def sketches(options: argparse.Namespace) -> None:
    for millions in options.sizes:
        for density in options.densities:
            measure_sketch(millions, density, options.repeats)
            torch.cuda.empty_cache()


PARTS = {"step": steps, "lists": lists, "sketch": sketches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[25, 100, 350])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.01, 0.001])
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART"
    )
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--warmup", type=int, default=120, help="steps before timing")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    torch.manual_seed(0)
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}; graphs")
    for part in options.parts:
        PARTS[part](options)
    print(
        "\n" + ("missed:\n  " + "\n  ".join(missed) if missed else "every aim is met")
    )


if __name__ == "__main__":
    main()
