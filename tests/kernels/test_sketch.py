"""Count-sketches: hashes, the bits of both backends, and error bounds."""

import pytest
import torch

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import same_bits, vector
from thinwire import kernels
from thinwire.kernels import Hashes, hashes
from thinwire.kernels.random_words import STEP, mixed
from thinwire.kernels.reference.sketch import places

CPU = torch.device("cpu")
ROWS = (1, 3, 5, 7)
KINDS = ("normal", "ties", "signed zeros", "few nonzero", "denormal", "octaves")


def estimates(x, hashes, *, mean=False):
    out = torch.full_like(x, float("nan"))
    kernels.estimate_sketch_(out, kernels.encode_sketch(x, hashes), hashes, mean=mean)
    return out


def test_the_mixer_and_its_keys():
    assert mixed(STEP) == 0xE220A8397B1DCDAF
    assert hashes.key(7, 0, 0) == 0x63CBE1E459320DD7
    assert hashes.key(7, 0, 1) == 0x044C3CD7F43C661C
    assert hashes.key(7, 1, 0) == 0x76A3DEC45265C099


VECTORS = (
    ([721, 649, 549, 604, 348, 182], "-+--++"),
    ([509, 751, 902, 849, 344, 496], "++-+-+"),
)


@pytest.mark.parametrize("backend", [reference, cpu])
def test_an_element_lies_in_one_cell_of_each_row(backend):
    for x in range(6):
        one = torch.zeros(6)
        one[x] = 3.0
        table = backend.encode_sketch(one, Hashes(2, 1000, seed=7))
        for row, (cells, signs) in zip(table, VECTORS, strict=True):
            assert row[cells[x]] == (3.0 if signs[x] == "+" else -3.0)
            assert torch.count_nonzero(row) == 1


@pytest.mark.parametrize("backend", [reference, cpu])
def test_lanes_of_a_block_are_neighbours_and_go_round(backend):
    # Block 0 begins at cell 721 of 1000 and is negative: lane 279 is the first again.
    x = torch.arange(1.0, 301.0)
    (row,) = backend.encode_sketch(x, Hashes(1, 1000, block=300, seed=7))
    assert torch.equal(row[721:], -x[:279])
    assert torch.equal(row[:21], -x[279:])
    assert torch.count_nonzero(row) == 300


@pytest.mark.parametrize("size", [0, 1, 2, 1000, 5003])
@pytest.mark.parametrize("kind", KINDS)
def test_both_backends_give_the_same_bits(kind, size):
    x = vector(kind, size)
    for rows, (columns, block) in zip(
        ROWS, [(97, 1), (1000, 256), (64, 64), (300, 97)], strict=True
    ):
        drawn = Hashes(rows, columns, block, seed=-5, epoch=size)
        table = reference.encode_sketch(x, drawn)
        assert same_bits(cpu.encode_sketch(x, drawn), table)
        assert same_bits(cpu.sketch_energy(table), reference.sketch_energy(table))
        for mean in (False, True):
            slow, fast = torch.empty(size), torch.empty(size)
            reference.estimate_sketch_(slow, table, drawn, mean=mean)
            cpu.estimate_sketch_(fast, table, drawn, mean=mean)
            assert same_bits(slow, fast)


def test_the_median_is_the_median():
    table = torch.randint(-9, 10, (7, 500)).float()
    out = torch.empty(500)
    for rows in ROWS:
        drawn = Hashes(rows, 500, block=500)
        kernels.estimate_sketch_(out, table[:rows], drawn)
        located = [places(drawn, i, 500, CPU) for i in range(rows)]
        seen = [table[i][cells] * signs for i, (cells, signs) in enumerate(located)]
        assert torch.equal(out, torch.stack(seen).median(dim=0).values)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_number_of_threads_changes_no_bit(threads, monkeypatch):
    monkeypatch.setattr("thinwire.kernels.cpu.threads.SHARE", 1000)
    x, drawn = vector("normal", 20_011), Hashes(5, 3001, block=256)
    table, found = kernels.encode_sketch(x, drawn), estimates(x, drawn)
    torch.set_num_threads(threads)
    assert same_bits(kernels.encode_sketch(x, drawn), table)
    assert same_bits(estimates(x, drawn), found)


@pytest.mark.parametrize("block", [1, 64, 256])
def test_it_is_linear(block):
    drawn = Hashes(5, 300, block)
    a, b = (torch.randint(-99, 100, (5003,)).float() for _ in range(2))
    left, right = (kernels.encode_sketch(x, drawn) for x in (a, b))
    assert torch.equal(left + right, kernels.encode_sketch(a + b, drawn))
    assert torch.equal(-left, kernels.encode_sketch(-a, drawn))
    assert not kernels.encode_sketch(torch.zeros(100), drawn).any()
    u, v = (torch.randn(5003) for _ in range(2))
    both = kernels.encode_sketch(u, drawn) + kernels.encode_sketch(v, drawn)
    torch.testing.assert_close(
        both, kernels.encode_sketch(u + v, drawn), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("block", [1, 64])
@pytest.mark.parametrize("mean", [False, True])
def test_estimates_are_not_biased(block, mean):
    x = vector("laplace", 500)
    seen = torch.stack(
        [estimates(x, Hashes(3, 64, block, epoch=e), mean=mean) for e in range(200)]
    ).double()
    error = seen.mean(dim=0) - x
    # Four standard errors; of 500 elements one in 16,000 would be beyond by chance.
    assert (error.abs() <= 4 * seen.std(dim=0) / 200**0.5).float().mean() >= 0.998


@pytest.mark.parametrize("block", [1, 16, 256, 1000])
def test_the_error_is_as_large_as_the_theory_says(block):
    torch.manual_seed(0)
    x, columns, seeds = torch.randn(20_000), 1000, 12
    # Constants for rows 1, 3, 5, 7: median, mean, and tails of the median.
    medians, means = (1.0, 0.66, 0.53, 0.45), (1.0, 0.58, 0.45, 0.38)
    tails = (0.083, 0.010, 0.0014, 0.0002)
    bound = (3 / columns) ** 0.5 * x.norm()
    for rows, median, mean, tail in zip(ROWS, medians, means, tails, strict=True):
        for how, wanted in ((False, median), (True, mean)):
            errors = torch.stack(
                [
                    estimates(x, Hashes(rows, columns, block, seed=s), mean=how) - x
                    for s in range(seeds)
                ]
            )
            rmse = errors.square().mean().sqrt() * columns**0.5 / x.norm()
            assert rmse == pytest.approx(wanted, rel=0.05)
            if not how:
                beyond = (errors.abs() > bound).float().mean()
                assert beyond == pytest.approx(tail, rel=0.25, abs=1e-4)


@pytest.mark.parametrize("block", [1, 64])
def test_few_elements_are_recovered_exactly(block):
    x = torch.zeros(10_000)
    x[::1000] = torch.arange(1.0, 11.0)
    assert torch.equal(estimates(x, Hashes(5, 5000, block, seed=3))[::1000], x[::1000])
    # A row shows an element alone with probability (1 - 1/c)^(m-1).
    m, columns, seeds = 100, 200, 60
    few = torch.zeros(6400)
    few[::64] = 1.0
    alone = sum(
        (estimates(few, Hashes(1, columns, block, seed=s))[::64] == 1.0).float().mean()
        for s in range(seeds)
    )
    # Others may cancel out, which adds to those that are alone.
    assert 0.95 * (1 - 1 / columns) ** (m - 1) < alone / seeds < 0.75


def test_rows_collide_independently():
    # What collides in one row does so in another as rarely as anything else.
    columns = 50
    drawn = Hashes(2, columns, block=16, seed=1)
    rows = [places(drawn, i, 3200, CPU)[0] for i in range(2)]
    same = [row[:, None] == row[None, :] for row in rows]
    pairs = torch.ones_like(same[0]).triu(1) & (
        torch.arange(3200)[:, None] // 16 != torch.arange(3200) // 16
    )
    both = (same[0] & same[1] & pairs).sum() / pairs.sum()
    for row in same:
        assert (row & pairs).sum() / pairs.sum() == pytest.approx(1 / columns, rel=0.15)
    assert both == pytest.approx(1 / columns**2, rel=0.5)


def test_the_energy_of_a_table_is_that_of_its_vector():
    x = vector("laplace", 20_000)
    for block in (1, 256):
        table = kernels.encode_sketch(x, Hashes(5, 1000, block))
        energy = kernels.sketch_energy(table).median()
        assert energy == pytest.approx(x.square().sum().item(), rel=0.1)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 1000, 1025])
def test_shuffled_numbers_are_a_permutation(size):
    numbers = kernels.shuffled(size, size, key=size)
    assert sorted(numbers.tolist()) == list(range(size))
    assert torch.equal(numbers, reference.shuffled(size, size, key=size))
    assert torch.equal(kernels.shuffled(size, size // 2, size), numbers[: size // 2])


def test_shuffled_numbers_are_drawn_evenly():
    drawn = torch.cat([kernels.shuffled(100, 20, key) for key in range(500)])
    counts = torch.bincount(drawn, minlength=100).float()
    # 500 draws of 20 of 100: 100 each, give or take nine.
    assert counts.std() < 12
    assert 60 < counts.min() <= counts.max() < 140


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": 0, "columns": 5}, "0 rows"),
        ({"rows": 64, "columns": 5}, "64 rows"),
        ({"rows": 1, "columns": 0}, "0 columns"),
        ({"rows": 1, "columns": 2**31}, "columns"),
        ({"rows": 1, "columns": 5, "block": 6}, "blocks of 6"),
    ],
)
def test_shapes_that_no_sketch_has(given, said):
    with pytest.raises(ValueError, match=said):
        Hashes(**given)


def test_there_is_no_median_of_four():
    with pytest.raises(ValueError, match="median of 4 rows"):
        estimates(torch.ones(10), Hashes(4, 8))
