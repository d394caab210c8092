"""Triton kernels of codecs and sketches return the reference's bits."""

import pytest
import torch

from tests.backends import cuda, reference
from tests.kernels.cuda_inputs import (
    CUDA,
    DEVICE,
    EVERY_BYTE,
    LIST,
    assert_same,
    drawn,
    drawn_indices,
)
from tests.kernels.kernel_inputs import VECTORS, same_bits
from thinwire import kernels
from thinwire.codecs.elias_fano import low_bits
from thinwire.kernels import Hashes

pytest.importorskip("triton", reason="needs Triton")

from thinwire.kernels.cuda import elias_fano, sketch

pytestmark = CUDA


@pytest.mark.parametrize(
    ("size", "nnz", "dtype"),
    [
        (16, 5, torch.int32),
        (1000, 100, torch.int64),
        (9003, 300, torch.int32),
        (70, 0, torch.int32),
    ],
)
def test_bitmaps_and_elias_fano(size, nnz, dtype):
    indices = drawn_indices(size, nnz, dtype)
    low = low_bits(size, nnz)
    section = cuda.encode_elias_fano(indices, size, low)
    assert torch.equal(section, reference.encode_elias_fano(indices, size, low))
    found = cuda.decode_elias_fano(section, size, nnz, low=low)
    assert torch.equal(found, indices.int())
    section = cuda.encode_bitmap(indices, size)
    assert torch.equal(section, reference.encode_bitmap(indices, size))
    assert torch.equal(cuda.decode_bitmap(section, size, nnz), indices.int())


def spread(size: int, nnz: int) -> dict[str, torch.Tensor]:
    """Lists with words full of ones, and with words that have none."""
    every = torch.arange(size, dtype=torch.int32, device=DEVICE)
    half = nnz // 2
    return {
        "drawn": drawn_indices(size, nnz),
        "first": every[:nnz],
        "last": every[size - nnz :],
        "both": torch.cat([every[:half], every[size - nnz + half :]]),
    }


@pytest.mark.usefixtures("dirty_memory")
def test_words_without_ones_are_zeros(monkeypatch):
    # The fewest entries that a program may own: 32.
    monkeypatch.setitem(elias_fano.WRITING, "ones", 64)
    for size, nnz in ((5000, 36), (3001, 97), (40_003, 101)):
        low = low_bits(size, nnz)
        for name, indices in spread(size, nnz).items():
            section = cuda.encode_elias_fano(indices, size, low)
            wanted = reference.encode_elias_fano(indices, size, low)
            assert torch.equal(section, wanted), (size, nnz, name)
            section = cuda.encode_bitmap(indices, size)
            assert torch.equal(section, reference.encode_bitmap(indices, size))


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize(
    ("size", "nnz"),
    [(0, 0), (70, 0), (1, 1), (16, 5), (9003, 301), (20_011, 1101), (2**33, 40)],
)
def test_packets(size, nnz):
    torch.manual_seed(nnz)
    every = {"drawn": torch.randint(0, max(size, 1), (nnz,)).unique().to(DEVICE)}
    if size < 2**31:
        every = spread(size, nnz)
    header = torch.arange(32, dtype=torch.uint8, device=DEVICE)
    for indices in every.values():
        values = drawn("octaves", nnz)[: len(indices)]
        for low in (low_bits(size, nnz), None)[: 1 + (size < 2**31)]:
            given = (header, indices, values, size, low)
            wanted = reference.encode_packet(*given)
            assert torch.equal(cuda.encode_packet(*given), wanted)
            listed = cuda.decode_packet(wanted, 32, size, len(indices), low=low)
            told = reference.decode_packet(wanted, 32, size, len(indices), low=low)
            assert all(map(torch.equal, listed, told))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_order_and_range(dtype):
    indices = drawn_indices(3000, 1200, dtype)
    assert cuda.strictly_increasing(indices, 3000)
    assert cuda.strictly_increasing(indices[:0], 0)
    assert not cuda.strictly_increasing(indices, int(indices[-1]))
    for at, value in ((0, -1), (700, 0), (1199, 5000), (1023, int(indices[1024]))):
        wrong = indices.clone()
        wrong[at] = value
        assert not cuda.strictly_increasing(wrong, 3000)


def test_indices_of_64_bits():
    size, nnz = 2**33, 40
    torch.manual_seed(0)
    indices = torch.randint(0, size, (nnz,)).sort().values.to(DEVICE)
    low = low_bits(size, nnz)
    section = cuda.encode_elias_fano(indices, size, low)
    assert torch.equal(section, reference.encode_elias_fano(indices, size, low))
    found = cuda.decode_elias_fano(section, size, nnz, low=low)
    assert torch.equal(found, indices)


def judged(decode, *args, **options):
    """What is decoded, or what was found wrong."""
    try:
        return decode(*args, **options).tolist()
    except ValueError as error:
        return str(error)


def test_backends_agree_on_damaged_bytes():
    size, nnz = 1000, 60
    indices = drawn_indices(size, nnz)
    low = low_bits(size, nnz)
    good = cuda.encode_elias_fano(indices, size, low)
    refused = 0
    for at in range(0, len(good), 11):
        bad = good.clone()
        bad[at] ^= 1 << at % 8
        # At an odd address, too: a section may begin anywhere in a message.
        odd = torch.cat([bad[:1], bad])[1:]
        found = judged(cuda.decode_elias_fano, odd, size, nnz, low=low)
        assert found == judged(reference.decode_elias_fano, bad, size, nnz, low=low)
        refused += isinstance(found, str)
    assert refused


def test_backends_agree_on_any_bytes():
    section = torch.tensor(list(EVERY_BYTE), dtype=torch.uint8, device=DEVICE)
    for nnz in (100, 254):
        given = section[: nnz + 2 * -(-nnz // 256)]
        found = judged(cuda.decode_int8, given, nnz)
        assert found == judged(reference.decode_int8, given, nnz)
    for nnz in (0, 1, 9):
        found = judged(cuda.decode_bitmap, section[:2], 16, nnz)
        assert found == judged(reference.decode_bitmap, section[:2], 16, nnz)


# Normal values move their levels in rounds; of ties, each has a level of its own.
@pytest.mark.parametrize(
    ("bits", "kinds"),
    [
        (3, ("normal", "ties", "zero", "denormal")),
        (4, ("laplace", "few nonzero", "not finite")),
        (8, ("octaves", "signed zeros", "equal")),
    ],
)
def test_levels_are_found(bits, kinds):
    for kind, size in zip(kinds, (LIST, 601, 600, 5), strict=False):
        values = drawn(kind, size)
        section = cuda.encode_log(values, bits)
        assert torch.equal(section, reference.encode_log(values, bits))
    none = values[:0]
    section = cuda.encode_log(none, bits)
    assert torch.equal(section, reference.encode_log(none, bits))


# One list of blocks for all cells of a tile, or one for each cell; blocks that go round
# the end of a row into the same list, or into the first.
@pytest.mark.parametrize(
    ("rows", "columns", "block"),
    [(3, 300, 1), (5, 300, 16), (3, 1000, 256), (1, 500, 300), (7, 64, 64)],
)
def test_sketches(rows, columns, block):
    hashes = Hashes(rows, columns, block, seed=-5, epoch=columns)
    for kind, size in (("octaves", LIST), ("signed zeros", 3)):
        x = drawn(kind, size)
        table = reference.encode_sketch(x, hashes)
        assert same_bits(cuda.encode_sketch(x, hashes), table)
        for mean in (False, True):
            found, wanted = torch.empty_like(x), torch.empty_like(x)
            cuda.estimate_sketch_(found, table, hashes, mean=mean)
            reference.estimate_sketch_(wanted, table, hashes, mean=mean)
            assert same_bits(found, wanted)
    assert same_bits(cuda.sketch_energy(table), reference.sketch_energy(table))
    assert not cuda.encode_sketch(x[:0], hashes).any()


@pytest.mark.parametrize("block", [1, 128])
def test_a_sketch_is_made_part_by_part(block, monkeypatch):
    monkeypatch.setattr(sketch, "_LISTED", 1)
    monkeypatch.setattr(sketch, "_FEWEST", 1)
    x, hashes = drawn("normal", 1003), Hashes(2, 390, block)
    table = cuda.encode_sketch(x, hashes)
    assert same_bits(table, reference.encode_sketch(x, hashes))


def test_the_median_of_an_even_number_of_rows_is_refused():
    out, hashes = torch.zeros(5, device=DEVICE), Hashes(2, 10)
    with pytest.raises(ValueError, match="the median of 2 rows"):
        cuda.estimate_sketch_(out, torch.zeros(2, 10), hashes, mean=False)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_levels(bits):
    values = drawn("laplace", 700)
    section = reference.encode_log(values, bits)
    found = cuda.decode_log(section, 700, bits)
    assert same_bits(found, reference.decode_log(section, 700, bits))
    for byte in (3, 7):
        bad = section.clone()
        bad[byte] = 255
        found = judged(cuda.decode_log, bad, 700, bits)
        assert found == judged(reference.decode_log, bad, 700, bits)
        assert isinstance(found, str)
    for nnz in (699, 700):
        padded = cuda.encode_log(values[:nnz], bits)
        padded = torch.cat([padded, padded.new_zeros(-len(padded) % 8)])
        for bad in (0, 128):
            padded[-1] |= bad
            found = judged(cuda.decode_log, padded, nnz, bits)
            assert found == judged(reference.decode_log, padded, nnz, bits)


@pytest.mark.parametrize("width", [0, 1, 5, 7, 17, 32, 33, 63])
def test_bits(width):
    torch.manual_seed(width)
    values = torch.randint(-(2**62), 2**62, (300,)).to(DEVICE)
    section = cuda.pack_bits(values, width)
    assert torch.equal(section, reference.pack_bits(values, width))
    found = cuda.unpack_bits(section, 300, width)
    assert torch.equal(found, reference.unpack_bits(section, 300, width))


def test_values():
    torch.manual_seed(0)
    any_bits = torch.randint(-(2**31), 2**31, (3000,)).int().view(torch.float32)
    for values in [*(drawn(name, 1300) for name in VECTORS), any_bits.to(DEVICE)]:
        for name in ("to_bfloat16", "to_float16"):
            found = getattr(cuda, name)(values)
            assert same_bits(found, getattr(reference, name)(values))
        section = cuda.encode_int8(values)
        assert torch.equal(section, reference.encode_int8(values))
        found = cuda.decode_int8(section, len(values))
        assert same_bits(found, reference.decode_int8(section, len(values)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_peaks_and_means(dtype):
    bounds = torch.tensor([0, 0, 1, 1667, 1732, 5002, 5003])
    for name in VECTORS:
        v = drawn(name, 5003).to(dtype)
        found = cuda.magnitudes(v, bounds)
        assert same_bits(found, reference.magnitudes(v, bounds))
    indices, values = drawn_indices(5003, 900), drawn("normal", 900)
    out = torch.ones(5003, dtype=dtype, device=DEVICE)
    out, other = ([torch.zeros_like(part) for part in out.split(1667)] for _ in "ab")
    means = [
        backend.write_mean_(pieces, indices, values, ranks=3)
        for backend, pieces in ((cuda, out), (reference, other))
    ]
    assert_same(means[:1], means[1:])
    assert_same(out, other)


def test_missing_kernels_use_the_reference():
    assert cuda.encode_rice is kernels.encode_rice.reference
