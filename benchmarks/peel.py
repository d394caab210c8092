"""How often one peeling is enough for a table, and its cost; results are verified.

python benchmarks/peel.py            # both tables
python benchmarks/peel.py --quick    # fewer trials
"""

import argparse
from math import isqrt
from time import process_time

import torch

from thinwire import kernels
from thinwire.collectives import S2
from thinwire.tools.bench.machine import machine

UNIONS = (10, 30, 100, 1000, 10_000, 100_000)
SHAPES = ((100_000, 1), (1_000_000, 1), (20_000, 64))
REPEATS = 5


def read_back(
    rows: int, width: int, columns: int, seed: int
) -> tuple[int, float, float]:
    """Rows that were stuck, and seconds to insert and to peel."""
    ids = torch.arange(0, 3 * rows, 3, dtype=torch.int32)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-1000, 1000, (rows, width), generator=generator).int()
    keys = kernels.hash_keys(seed, 0, 3)
    start = process_time()
    cells = kernels.sketch_rows(ids, values, keys, columns)
    inserted = process_time()
    found, stuck = kernels.peel_rows_(cells, ids, keys)
    peeled = process_time()
    values[stuck] = 0
    assert torch.equal(found, values)
    return len(stuck), inserted - start, peeled - inserted


def success(rows: int, cells: int, trials: int) -> str:
    whole = sum(read_back(rows, 1, -(-cells // 3), t)[0] == 0 for t in range(trials))
    return f"{whole / trials:.1%} ({cells / rows:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(machine())
    print(
        "\n| rows in the union | 1.3 | 1.3 and 3 sqrt(u) + 6 more | as sized by `s2` |"
    )
    print("| --- | --- | --- | --- |")
    for rows in UNIONS:
        trials = 20 if rows > 10_000 else (200 if rows > 1000 or quick else 1000)
        least = int(1.3 * rows)
        sizes = (least, least + 3 * isqrt(rows) + 6, 3 * S2().columns_for(10**9, rows))
        print("|", rows, *("| " + success(rows, n, trials) for n in sizes), "|")
    print("\n| rows | elements of a row | ns a row to insert | to peel |")
    print("| --- | --- | --- | --- |")
    for rows, width in SHAPES:
        columns = S2().columns_for(10**9, rows)
        seen = [read_back(rows, width, columns, seed) for seed in range(REPEATS)]
        insert, peel = (
            min(times) / rows * 1e9 for times in list(zip(*seen, strict=True))[1:]
        )
        print(f"| {rows} | {width} | {insert:.0f} | {peel:.0f} |")


if __name__ == "__main__":
    main()
