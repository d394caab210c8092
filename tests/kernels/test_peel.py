"""Sketched rows: hashes, worked examples, peeling against its reference."""

import pytest
import torch

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import same_bits, some_indices
from thinwire import kernels
from thinwire.kernels import hash_keys
from thinwire.kernels.random_words import mixed
from thinwire.kernels.reference.peel import places

TOKENS = torch.tensor([4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18, 19])
FIRST = torch.tensor([[1.0, -2, 0, 3, 0, 0, 0, 0, 0.5, 0, -1, 2]]).T
SECOND = torch.tensor([[1.0, 2, -1, 0, -4, 0, 0, 1, 0, 0, 0, 0]]).T
TRUTH = (FIRST + SECOND).view(-1).tolist()

BACKENDS = pytest.mark.parametrize("backend", [reference, cpu], ids=["plain", "fast"])


def signs(subtract):
    return "".join("-" if s else "+" for s in subtract.tolist())


def test_the_hash_is_the_stated_one():
    assert mixed(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    keys = [key & (2**64 - 1) for key in hash_keys(7, 0, 2).tolist()]
    assert keys == [0x63CBE1E459320DD7, 0x044C3CD7F43C661C]
    assert hash_keys(7, 1, 1).item() == 0x76A3DEC45265C099
    said = [places(torch.arange(6), key, 1000) for key in hash_keys(7, 0, 2).tolist()]
    assert [column.tolist() for column, _ in said] == [
        [721, 649, 549, 604, 348, 182],
        [509, 751, 902, 849, 344, 496],
    ]
    assert [signs(subtract) for _, subtract in said] == ["-+--++", "++-+-+"]


@pytest.mark.parametrize("rows", [0, 65])
def test_a_table_has_one_to_64_rows(rows):
    with pytest.raises(ValueError, match="1 to 64 are possible"):
        hash_keys(0, 0, rows)


@BACKENDS
def test_worked_example_with_one_row(backend):
    keys = hash_keys(seed=3, epoch=0, rows=1)
    tables = [backend.sketch_rows(TOKENS, v, keys, 16) for v in (FIRST, SECOND)]
    nonzero = [
        {int(i): t.view(-1)[i].item() for i in t.nonzero()[:, 1]} for t in tables
    ]
    assert nonzero == [
        {2: 2.0, 9: 2.0, 12: 1.0, 13: -2.0, 14: 0.5},
        {9: -2.0, 10: -1.0, 12: 5.0, 15: 1.0},
    ]
    for how in ("median", "mean"):
        said = backend.estimate_rows(tables[0] + tables[1], TOKENS, keys, how)
        assert said.view(-1).tolist() == [6, 0, -1, 2, -6, 0, 0, 1, 0.5, 0, 2, 2]


@BACKENDS
def test_worked_example_median_and_peeling(backend):
    keys = hash_keys(seed=1, epoch=0, rows=3)
    table = backend.sketch_rows(TOKENS, FIRST + SECOND, keys, 6)
    assert table.view(3, 6).tolist() == [
        [-2, -5, 0, 1, 0, -0.5],
        [3, -1, -3, 1.5, -4, 0],
        [0, 0.5, -3, 1, -1, 2],
    ]
    said = backend.estimate_rows(table, TOKENS, keys, "median").view(-1).tolist()
    assert said == [3, 0, -1, 3, -2, 0, 0, 0, 0.5, 0, 0, -1]
    assert sum(a != b for a, b in zip(said, TRUTH, strict=True)) == 5
    halves = (2 * table).int()
    peeled, stuck = backend.peel_rows_(halves, TOKENS, keys)
    assert (peeled.view(-1) / 2).tolist() == TRUTH
    assert len(stuck) == 0
    assert not halves.any()


def rows_of(count, width, dtype):
    torch.manual_seed(count)
    if dtype == torch.int32:
        return torch.randint(-(2**31), 2**31, (count, width)).int()
    return torch.randn(count, width)


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 30, 700])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_kernels_return_the_bits_of_the_reference(count, width, dtype):
    ids = some_indices(100_000, count, dtype)
    for rows, columns in ((1, 40), (3, max(1, count // 3)), (3, count + 5), (5, 7)):
        keys = hash_keys(count, rows, rows)
        whole = rows_of(count, width, torch.int32)
        tables = [b.sketch_rows(ids, whole, keys, columns) for b in (cpu, reference)]
        assert same_bits(*tables)
        (fast, stuck), (plain, also_stuck) = (
            backend.peel_rows_(table, ids, keys)
            for backend, table in zip((cpu, reference), tables, strict=True)
        )
        assert same_bits(fast, plain)
        assert same_bits(*tables)
        assert stuck.tolist() == also_stuck.tolist()
        left = torch.ones(count, dtype=torch.bool)
        left[stuck] = False
        assert torch.equal(fast[left], whole[left])
        assert not fast[~left].any()
        values = rows_of(count, width, torch.float32)
        tables = [b.sketch_rows(ids, values, keys, columns) for b in (cpu, reference)]
        assert same_bits(*tables)
        for how in ("median", "mean"):
            said = [
                b.estimate_rows(tables[0], ids, keys, how) for b in (cpu, reference)
            ]
            assert same_bits(*said)


def test_tables_add_up():
    keys = hash_keys(5, 5, 3)
    ids = some_indices(1000, 90)
    parts = [rows_of(90, 2, torch.int32) >> shift for shift in (4, 5, 6)]
    tables = [kernels.sketch_rows(ids, part, keys, 50) for part in parts]
    assert torch.equal(sum(tables), kernels.sketch_rows(ids, sum(parts), keys, 50))


def test_rows_that_are_not_in_the_table_come_out_as_zeros():
    ids = torch.arange(0, 900, 3)
    present = ids[::2]
    keys = hash_keys(1, 2, 3)
    values = rows_of(len(present), 4, torch.int32)
    cells = kernels.sketch_rows(present, values, keys, 200)
    peeled, stuck = kernels.peel_rows_(cells, ids, keys)
    assert len(stuck) == 0
    assert torch.equal(peeled[::2], values)
    assert not peeled[1::2].any()


@pytest.mark.parametrize(
    ("items", "gamma", "low", "high"),
    [
        (30, 1.3, 0.15, 0.6),
        (30, 2.0, 0.8, 1.0),
        (100, 1.5, 0.85, 1.0),
        (1000, 1.1, 0.0, 0.02),
        (1000, 1.3, 0.95, 1.0),
        (20_000, 1.25, 0.9, 1.0),
    ],
)
def test_how_often_everything_is_peeled(items, gamma, low, high):
    ids = torch.arange(items)
    values = torch.ones(items, 1, dtype=torch.int32)
    trials = 100 if items <= 1000 else 10
    columns = -(-int(gamma * items) // 3)
    whole = 0
    for trial in range(trials):
        keys = hash_keys(trial, 0, 3)
        cells = kernels.sketch_rows(ids, values, keys, columns)
        whole += len(kernels.peel_rows_(cells, ids, keys)[1]) == 0
    assert low <= whole / trials <= high


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1, 2, 4, 8])
def test_rows_without_a_collision(ratio):
    """A row is alone in its only cell with probability exp(-rows / columns)."""
    items = 4000
    ids = torch.arange(items)
    keys = hash_keys(int(100 * ratio), 0, 1)
    cells = kernels.sketch_rows(
        ids, torch.ones(items, 1, dtype=torch.int32), keys, int(ratio * items)
    )
    _, stuck = kernels.peel_rows_(cells, ids, keys)
    alone = 1 - len(stuck) / items
    assert alone == pytest.approx(torch.tensor(-1 / ratio).exp().item(), abs=0.03)


@pytest.mark.parametrize("how", ["mean", "median"])
def test_estimates_are_unbiased_and_vary_as_stated(how):
    """One row: E(error squared) = (Q - 1) / columns of the sum of squares."""
    items, columns, trials = 50, 40, 400
    torch.manual_seed(1)
    ids, values = torch.arange(items), torch.randn(items, 1)
    errors = []
    for seed in range(trials):
        keys = hash_keys(seed, 3, 1 if how == "mean" else 3)
        cells = kernels.sketch_rows(ids, values, keys, columns)
        errors.append(kernels.estimate_rows(cells, ids, keys, how) - values)
    error = torch.stack(errors).double()
    spread = error.square().mean(0).sqrt() / trials**0.5
    assert (error.mean(0).abs() < 5 * spread).all()
    if how == "mean":
        relative = (error.square().sum((1, 2)) / values.square().sum()).mean().item()
        assert relative == pytest.approx((items - 1) / columns, rel=0.05)


@BACKENDS
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 64, 65, 1000])
def test_set_bits_reads_what_a_bitmap_holds(backend, size):
    torch.manual_seed(size)
    for count in {0, min(1, size), size // 3, size}:
        indices = some_indices(size, count)
        bitmap = kernels.encode_bitmap(indices, size)
        assert same_bits(backend.set_bits(bitmap, size), indices)


@BACKENDS
def test_a_bitmap_that_is_none_is_refused(backend):
    section = torch.tensor([0, 8], dtype=torch.uint8)
    with pytest.raises(ValueError, match="after the end"):
        backend.set_bits(section, 11)
    with pytest.raises(ValueError, match="where 3 are expected"):
        backend.set_bits(section, 17)
    with pytest.raises(ValueError, match="where 1 are expected"):
        backend.set_bits(torch.zeros(9, dtype=torch.uint8), 8)
