"""Triton kernels of vectors and lists return the reference's bits."""

from itertools import pairwise

import pytest
import torch

from tests.backends import cuda, reference
from tests.kernels.cuda_inputs import (
    CUDA,
    DEVICE,
    SIZE,
    assert_same,
    drawn,
    drawn_indices,
)
from tests.kernels.kernel_inputs import (
    VECTORS,
    same_bits,
    ways_to_cut,
)
from thinwire import kernels
from thinwire.kernels import Block, interleaved_blocks

pytest.importorskip("triton", reason="needs Triton")

from thinwire.kernels.cuda import mark

pytestmark = CUDA


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
        old, before = y.clone(), torch.empty_like(y) if step % 2 else None
        candidates.accumulate_(grad, offset=0, scale=scale, before=before)
        assert before is None or same_bits(before, old)
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


def test_extracted_elements_are_restored_first():
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


def test_invalid_arguments_are_refused():
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
@pytest.mark.parametrize("subtracting", [False, True])
def test_what_is_kept(holders, subtracting):
    block = interleaved_blocks(2003, 3, 64)[1]
    indices, values = drawn_indices(block.length, 90), drawn("ties", 90)
    indices[7] = -1  # a hole
    sent = drawn("ties", 91)[1:].contiguous() if subtracting else None
    x = drawn("signed zeros", 2003)
    y = x.clone()
    given = {"sent": sent, "holders": holders, "block": block}
    cuda.return_at_(x, indices, values, **given)
    reference.return_at_(y, indices, values, **given)
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
