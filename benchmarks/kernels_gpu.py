"""The kernels of a CUDA device against its memory, and against torch.

    python benchmarks/kernels_gpu.py --sizes 25 100 350 --densities 0.01 0.001

A step accumulates without the zeroing of the gradient, extracts candidates, and takes
from all blocks, captured in a CUDA graph and replayed on fresh gradients (Laplace, each
run of 65 536 elements with a scale of its own, lognormal), after `--warmup` steps of
error feedback, when the residual is steady. Before every replay 256 MB are overwritten,
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

import torch
import triton
from torch import Tensor

from gpu_lists import lists, sketches
from gpu_step import CHUNK, Case, steady, stock
from gpu_timing import Times, captured, floor_of, in_a_row, judge, missed, timed
from thinwire import kernels
from thinwire.codecs.elias_fano import low_bits
from thinwire.kernels import Block
from thinwire.kernels.cuda import elias_fano
from thinwire.kernels.cuda.candidates import Candidates

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
