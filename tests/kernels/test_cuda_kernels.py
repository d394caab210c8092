"""The Triton kernels return the reference's bits: on a CUDA device, or interpreted.

Without a device Triton's interpreter (see `tests/conftest.py`) runs the same kernels on
the processor, slowly, so vectors are short. Blocks count as long enough for a list of
candidates from the first element on.
"""

from itertools import pairwise

import pytest
import torch

from tests.backends import cuda, reference
from tests.kernels.kernel_inputs import (
    VECTORS,
    same_bits,
    some_indices,
    vector,
    ways_to_cut,
)

pytest.importorskip("triton", reason="needs Triton")

# ruff: noqa: E402, because the next imports fail where there is no Triton.
ON_DEVICE = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_DEVICE else "cpu")
SIZE = 300_007 if ON_DEVICE else 2003
LIST = 30_011 if ON_DEVICE else 803
# The interpreter computes with numpy, which warns of what is not finite.
pytestmark = (
    pytest.mark.gpu
    if ON_DEVICE
    else pytest.mark.filterwarnings("ignore::RuntimeWarning")
)

from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.codecs import BFloat16, EliasFano, Split
from thinwire.codecs.elias_fano import low_bits
from thinwire.kernels import (
    Block,
    Hashes,
    interleaved_blocks,
)
from thinwire.kernels.cuda import buffer, elias_fano, mark, sketch
from thinwire.sparse import SparseVector

on_device = pytest.mark.skipif(not ON_DEVICE, reason="needs a CUDA device")
EVERY_BYTE = bytes(range(256))


@pytest.fixture(autouse=True)
def lists_for_short_blocks(monkeypatch):
    monkeypatch.setattr(buffer, "SHORT", 0)


@pytest.fixture
def dirty_memory():
    """What `torch.empty` returns is full of ones."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def drawn(name: str, size: int) -> torch.Tensor:
    return vector(name, size).to(DEVICE)


def drawn_indices(size: int, count: int, dtype=torch.int32) -> torch.Tensor:
    torch.manual_seed(size + count)
    return some_indices(size, count, dtype).to(DEVICE)


def assert_same(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert same_bits(a, b)


def words(candidates, which):
    state = candidates.buffer.state.view(-1, mark.STATE.value)
    return state[:, which.value].tolist()


@pytest.mark.parametrize("number", range(len(VECTORS)))
def test_select(number):
    name = list(VECTORS)[number]
    x = drawn(name, SIZE)
    block = ways_to_cut(SIZE)[number % 6][-1]
    for k in (block.length // 50, block.length // 2)[: 1 + number % 2]:
        found = cuda.select(x, k, block=block)
        wanted = reference.select(x, k, block=block)
        assert_same(found, wanted)


def test_few_elements_and_all_of_them():
    for size in (1, 65):
        x, block = drawn("ties", size), Block.whole(size)
        for k in {0, 1, size}:
            found = cuda.select(x, k, block=block)
            wanted = reference.select(x, k, block=block)
            assert_same(found, wanted)


@pytest.mark.parametrize(
    ("blocks", "dtype", "rounding"),
    [
        ((Block.whole(SIZE),), torch.float32, torch.float32),
        ((Block.whole(SIZE),), torch.float32, torch.bfloat16),
        (interleaved_blocks(SIZE, 2, 64), torch.bfloat16, torch.bfloat16),
        (kernels.contiguous_blocks(SIZE, 2), torch.float16, None),
    ],
)
def test_error_feedback(blocks, dtype, rounding):
    """Steady, jumping, tied and received: listed or not, the bits are the same."""
    x = torch.zeros(SIZE, device=DEVICE)
    y, candidates = x.clone(), cuda.new_candidates(x, blocks)
    counts, numbers = [block.length // 50 for block in blocks], range(len(blocks))
    kinds, listed = ("normal", "laplace", "ties", "octaves", "normal"), []
    out = []
    for step, kind in enumerate(kinds):
        grad = drawn(kind, SIZE).to(dtype)
        again = grad.clone()
        scale = 0.5 if step == 1 else 1.0
        candidates.accumulate_(grad, offset=0, scale=scale)
        reference.accumulate_(y, again, offset=0, scale=scale)
        assert not grad.any()
        out.append(len(candidates.buffer.extracted) if step else 0)
        if step == 2:
            received = (drawn_indices(blocks[0].length, 40), drawn("normal", 40))
            candidates.add_(*received, 0)
            reference.add_at_(y, *received, block=blocks[0])
        taken = candidates.select(counts, numbers, rounding)
        for block, k, found in zip(blocks, counts, taken, strict=True):
            wanted = reference.select(y, k, block=block)
            assert_same(found, wanted)
            if rounding is not None:
                sent = wanted[1].to(rounding).float()
                reference.subtract_at_(y, wanted[0], sent, block=block)
        assert same_bits(x, y)
        listed += [1 - dense for dense in words(candidates, mark.DENSE)]
    assert 0 < sum(listed) < len(listed)
    # A block that was added to is not extracted from the next time.
    number = len(blocks)
    assert out == ([0, number, number, number - 1, number] if rounding else [0] * 5)


def test_what_is_extracted_comes_back_before_anything_else_happens():
    x = torch.zeros(SIZE, device=DEVICE)
    wanted, candidates = x.clone(), cuda.new_candidates(x, (Block.whole(SIZE),))

    def accumulate():
        nonlocal wanted
        grad = drawn("normal", SIZE)
        wanted = wanted + grad
        candidates.accumulate_(grad, offset=0, scale=1.0)
        return candidates.buffer is not None and bool(candidates.buffer.extracted)

    def take():
        nonlocal wanted
        ((indices, values),) = candidates.select([SIZE // 50], [0], torch.float32)
        reference.subtract_at_(wanted, indices, values)

    extracted = []
    for k in (SIZE // 50, SIZE // 2):
        extracted += [accumulate(), accumulate()]
        (found,) = candidates.select([k], [0], None)
        assert_same(found, reference.select(wanted, k))
        assert same_bits(x, wanted)
        take()
    extracted.append(accumulate())
    candidates.restore_()
    assert same_bits(x, wanted)
    take()
    assert same_bits(x, wanted)
    assert extracted == [False, False, True, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pieces_and_strides_are_accumulated(dtype):
    x, wide = drawn("octaves", 2000), drawn("normal", 4000).to(dtype)
    wanted = x.clone()
    for low, high in pairwise((0, 1, 2000)):
        grad = wide[::2][low:high]
        reference.accumulate_(wanted, grad.clone(), offset=low, scale=0.3)
        cuda.accumulate_(x, grad, offset=low, scale=0.3)
    assert same_bits(x, wanted)
    assert not wide[::2].any()
    assert wide[1::2].any()


def test_what_does_not_fit_is_refused():
    x, ones = torch.zeros(5, device=DEVICE), torch.ones(3, device=DEVICE)
    with pytest.raises(ValueError, match="3 to 6 are not in a vector of 5"):
        cuda.accumulate_(x, ones, offset=3, scale=1.0)
    with pytest.raises(ValueError, match="float64"):
        cuda.accumulate_(x, ones.double(), offset=0, scale=1.0)
    with pytest.raises(ValueError, match="contiguous"):
        cuda.gather(x[::2], ones.int(), block=Block.whole(3))
    with pytest.raises(ValueError, match="cannot select 6 of 5"):
        cuda.select(x, 6, block=Block.whole(5))
    with pytest.raises(ValueError, match="does not lie"):
        cuda.select(x, 1, block=Block(2, 4, 4, 4))


@pytest.mark.parametrize("cut", range(6))
def test_elements(cut):
    block = ways_to_cut(2003)[cut][-1]
    x, count = drawn("octaves", 2003), block.length // 3
    y = x.clone()
    indices, values = drawn_indices(block.length, count), drawn("octaves", count)
    assert same_bits(
        cuda.gather(x, indices, block=block), reference.gather(y, indices, block=block)
    )
    given = {"block": block}
    cuda.add_at_(x, indices, values, **given)
    reference.add_at_(y, indices, values, **given)
    cuda.subtract_at_(x, indices, values * 0.3, block=block)
    reference.subtract_at_(y, indices, values * 0.3, block=block)
    assert same_bits(x, y)
    held = reference.gather(y, indices, block=block)
    cuda.leave_at_(x, indices, held, values, block=block)
    reference.subtract_at_(y, indices, values, block=block)
    assert same_bits(x, y)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        small = drawn("normal", count)
        out, other = (torch.ones(2003, dtype=dtype, device=DEVICE) for _ in range(2))
        cuda.scatter_(out, indices, small, block=block, divisor=3.0)
        reference.scatter_(other, indices, small, block=block, divisor=3.0)
        assert same_bits(out, other)


@pytest.mark.parametrize("holders", [(1, 0), (4, 1), (3, 2)])
@pytest.mark.parametrize("telling", [False, True])
def test_what_is_kept(holders, telling):
    block = interleaved_blocks(2003, 3, 64)[1]
    indices, values = drawn_indices(block.length, 90), drawn("ties", 90)
    indices[7] = -1  # a hole
    told = drawn("ties", 91)[1:].contiguous() if telling else None
    x = drawn("signed zeros", 2003)
    y = x.clone()
    given = {"told": told, "holders": holders, "block": block}
    cuda.keep_at_(x, indices, values, **given)
    reference.keep_at_(y, indices, values, **given)
    assert same_bits(x, y)


@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1])
def test_an_index_outside_the_block_is_not_followed(bad):
    x = torch.zeros(40, device=DEVICE)
    block = Block(start=4, chunk=5, stride=20, length=10)
    indices = torch.tensor([3, bad], dtype=torch.int32, device=DEVICE)
    ones = torch.ones(2, device=DEVICE)
    cuda.add_at_(x, indices, ones, block=block)
    assert x.nonzero().flatten().tolist() == [block.position(3)]
    assert cuda.gather(x, indices, block=block).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("lengths", "dtype"),
    [((0, 5), torch.int32), ((700, 900), torch.int64), ((90, 2), torch.int32)],
)
def test_merge(lengths, dtype):
    left, right = ((drawn_indices(1000, n, dtype), drawn("ties", n)) for n in lengths)
    wanted = reference.merge_add(*left, *right)
    assert_same(cuda.merge_add(*left, *right), wanted)
    for k in (max(lengths) // 3, max(lengths)):
        kept, others = cuda.merge_split(left, right, k)
        wanted_kept, wanted_others = reference.split(*wanted, k)
        there = others[0] >= 0
        assert not others[1][~there].any()
        assert_same(kept, wanted_kept)
        assert_same([part[there] for part in others], wanted_others)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_merge_many(dtype):
    lengths = (90, 0, 400, 90, 399, 1, 300)
    lists = []
    for number, n in enumerate(lengths):
        indices = drawn_indices(500, n, dtype)
        lists.append((indices, drawn("signed zeros" if number == 3 else "normal", n)))
    for count in (1, 2, 3, 7):
        wanted = reference.merge_all(lists[:count])
        assert_same(cuda.merge_all(lists[:count]), wanted)


@pytest.mark.parametrize("name", ["ties", "not finite", "zero"])
def test_split(name):
    nnz = 3003
    indices, values = drawn_indices(3 * nnz, nnz), drawn(name, nnz)
    for k in (0, 1, nnz // 2, nnz, nnz + 3):
        found, wanted = (
            backend.split(indices, values, k) for backend in (cuda, reference)
        )
        for part, other in zip(found, wanted, strict=True):
            assert_same(part, other)


@pytest.mark.parametrize(
    "blocks",
    [
        interleaved_blocks(1003, 3, 64),
        interleaved_blocks(100, 7, 1),
        interleaved_blocks(100, 4, 64),
        kernels.contiguous_blocks(1000, 3),
        (Block(0, 1, 2, 50), Block(1, 3, 6, 50)),
    ],
)
def test_join(blocks):
    lists = []
    for block in blocks:
        count = block.length // 3
        lists.append((drawn_indices(block.length, count), drawn("normal", count)))
    assert_same(cuda.join(lists, blocks), reference.join(lists, blocks))


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


def test_damaged_bytes_are_judged_alike():
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


def test_any_bytes_are_judged_alike():
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


def test_what_is_missing_is_done_by_the_reference():
    assert cuda.encode_rice is kernels.encode_rice.reference


@on_device
def test_the_front_door_leads_here(monkeypatch):
    monkeypatch.setattr(buffer, "SHORT", 1 << 20)
    x = drawn("normal", 3_000_017)
    found = kernels.select(x, 30_000)
    with kernels.by_reference():
        assert_same(found, kernels.select(x, 30_000))


@on_device
@pytest.mark.parametrize("nnz", [0, 3, 20_001, 1_000_000])
def test_a_packet_is_the_processor_s(nnz):
    size, codec = 2_000_003, Split(EliasFano(), BFloat16(), checksum=False)
    indices, values = drawn_indices(size, nnz), drawn("normal", nnz)
    packet = codec.encode(SparseVector(indices, values, size))
    wanted = codec.encode(SparseVector(indices.cpu(), values.cpu(), size))
    assert torch.equal(packet.body.cpu(), wanted.body)
    assert codec.decode(packet, size).indices.tolist() == indices.tolist()


@on_device
def test_a_step_is_captured_and_waits_for_nothing():
    size = 2_000_003
    x, grad = Accumulator(size, DEVICE), torch.zeros(size, device=DEVICE)
    x.set_blocks(interleaved_blocks(size, 2, 1024))
    counts = [block.length // 100 for block in x.blocks]
    taken, codec = [], Split(EliasFano(), BFloat16())

    def step():
        x.accumulate_(grad)
        taken[:] = x.take(counts)
        for (indices, values), block in zip(taken, x.blocks, strict=True):
            codec.encode(SparseVector(indices, values, block.length))

    for _ in range(3):
        grad.normal_()
        step()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        grad.normal_()
        step()
        with torch.cuda.graph(graph):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for _ in range(3):
        grad.normal_()
        wanted = x.whole() + grad
        graph.replay()
        for block, k, found in zip(x.blocks, counts, taken, strict=True):
            again = reference.select(wanted, k, block=block)
            assert_same(found, again)
            reference.subtract_at_(wanted, *again, block=block)
        assert same_bits(x.whole(), wanted)


@on_device
@pytest.mark.parametrize("block", [1, 1024])
def test_sketches_and_levels_wait_for_nothing(block):
    x = drawn("normal", 1_000_003)
    seen = []
    for epoch in range(2):
        hashes = Hashes(3, 100_000, block, epoch=epoch)
        torch.cuda.set_sync_debug_mode("error" if epoch else "default")
        try:
            table, out = kernels.encode_sketch(x, hashes), torch.empty_like(x)
            kernels.estimate_sketch_(out, table, hashes)
            energy = kernels.sketch_energy(table)
            section = kernels.encode_log(x, 4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        seen = [table, out, energy, section]
    with kernels.by_reference():
        again = torch.empty_like(x)
        kernels.estimate_sketch_(again, table, hashes)
        wanted = [kernels.encode_sketch(x, hashes), again]
        wanted += [kernels.sketch_energy(table), kernels.encode_log(x, 4)]
    assert_same(seen, wanted)


@on_device
def test_a_sketch_is_the_same_every_time():
    x, hashes = drawn("octaves", 3_000_017), Hashes(3, 30_000, 1024)
    table = kernels.encode_sketch(x, hashes)
    section = kernels.encode_log(x, 4)
    for _ in range(20):
        assert same_bits(kernels.encode_sketch(x, hashes), table)
        assert torch.equal(kernels.encode_log(x, 4), section)


@on_device
def test_vectors_longer_than_32_bits_count():
    size = 2**31 + 5000
    blocks = kernels.contiguous_blocks(size, 2)
    x = Accumulator(size, DEVICE)
    x.set_blocks(blocks)
    for _ in range(2):
        grad = torch.zeros(size, device=DEVICE)
        grad[::1000] = 1.0
        grad[-1] = -7.0
        x.accumulate_(grad)
        taken = x.take([1000, 1000])
    # What the first step took is half as large as its equals in the second.
    assert taken[0][0].tolist() == list(range(1_000_000, 2_000_000, 1000))
    assert taken[1][0][-1].item() == blocks[1].length - 1
    assert taken[1][1][-1].item() == -7.0
    found = elias_fano.encode_elias_fano(taken[1][0], blocks[1].length, 20)
    wanted = reference.encode_elias_fano(taken[1][0], blocks[1].length, 20)
    assert torch.equal(found, wanted)
