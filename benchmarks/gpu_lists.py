"""Lists that are merged, values in levels and sketches on a CUDA device."""

import argparse

import torch
from torch import Tensor

from gpu_timing import captured, floor_of, in_a_row, judge, timed
from thinwire import kernels
from thinwire.kernels import Hashes
from thinwire.kernels.trees import added_up

MERGING = {250_000: 45.0, 1_000_000: 135.0}
SKETCH_ROWS = (3, 5)
SKETCH_BLOCKS = (1024, 64, 1)
CHECKED = 1_000_003


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
