import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import VECTORS, same_bits, some_indices, vector

INDEX_DTYPES = (torch.int32, torch.int64)


def assert_same_lists(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert same_bits(a, b)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    "lengths", [(0, 0), (0, 5), (5, 0), (1, 1), (700, 900), (90, 2)]
)
@pytest.mark.parametrize("size", [1000, 10_000])
def test_merge_add(lengths, size, dtype):
    torch.manual_seed(size)
    left, right = (some_indices(size, length, dtype) for length in lengths)
    for name in set(VECTORS) - {"not finite"}:
        values = vector(name, len(left)), vector("ties", len(right)) * -0.0
        for u, v in (values, (values[0], -vector(name, len(right)))):
            found = cpu.merge_add(left, u, right, v)
            assert_same_lists(found, reference.merge_add(left, u, right, v))


def test_a_merge_keeps_negative_zeros_and_nonfinite_values():
    left, right = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 4])
    u, v = torch.tensor([-0.0, 0.0, -0.0]), torch.tensor([-0.0, -0.0, float("inf")])
    for merge_add in (cpu.merge_add, reference.merge_add):
        indices, values = merge_add(left, u, right, v)
        assert indices.tolist() == [0, 1, 2, 3, 4]
        assert same_bits(values, torch.tensor([-0.0, 0.0, -0.0, -0.0, float("inf")]))


def test_disjoint_lists_follow_each_other():
    low, high = torch.arange(100), torch.arange(100, 150)
    ones, twos = torch.ones(100), torch.full((50,), 2.0)
    for pair in ((low, ones, high, twos), (high, twos, low, ones)):
        indices, values = cpu.merge_add(*pair)
        assert torch.equal(indices, torch.arange(150))
        assert torch.equal(values, torch.cat([ones, twos]))


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("nnz", [0, 1, 2, 65, 5003])
def test_split(name, nnz, dtype):
    indices, values = some_indices(3 * nnz + 1, nnz, dtype), vector(name, nnz)
    for k in (0, 1, nnz // 100, nnz // 2, nnz - 1, nnz, nnz + 3):
        found = cpu.split(indices, values, max(k, 0))
        wanted = reference.split(indices, values, max(k, 0))
        for part, other in zip(found, wanted, strict=True):
            assert_same_lists(part, other)


def test_split_leaves_its_argument_alone():
    indices, values = torch.arange(4), torch.ones(4)
    for k in (0, 2, 4):
        for _, part in cpu.split(indices, values, k):
            part.zero_()
    assert torch.equal(values, torch.ones(4))


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    ("nnz", "asked"), [(0, 0), (0, 9), (9, 0), (1, 1), (700, 900), (2, 90), (1000, 700)]
)
def test_look_up(nnz, asked, dtype):
    torch.manual_seed(nnz)
    indices, wanted = (some_indices(1000, length, dtype) for length in (nnz, asked))
    values, others = vector("normal", nnz), -vector("not finite", asked)
    before = others.clone()
    found = cpu.look_up(indices, values, wanted, others)
    listed = dict(zip(indices.tolist(), values.tolist(), strict=True))
    said = [
        listed.get(i, o) for i, o in zip(wanted.tolist(), others.tolist(), strict=True)
    ]
    assert same_bits(found, torch.tensor(said))
    assert same_bits(found, reference.look_up(indices, values, wanted, others))
    assert same_bits(others, before)


@pytest.mark.parametrize("dtype", INDEX_DTYPES)
@pytest.mark.parametrize(
    ("indices", "size", "answer"),
    [
        ([], 0, True),
        ([0], 1, True),
        ([0], 0, False),
        ([-1], 5, False),
        ([3, 4], 5, True),
        ([3, 5], 5, False),
        ([3, 3], 5, False),
        ([4, 3], 5, False),
        ([0, 2, 1, 3], 5, False),
        ([-1, 0, 1], 5, False),
    ],
)
def test_strictly_increasing(indices, size, answer, dtype):
    tensor = torch.tensor(indices, dtype=dtype)
    assert cpu.strictly_increasing(tensor, size) is answer
    assert reference.strictly_increasing(tensor, size) is answer


@pytest.mark.parametrize("at", [1, 500, 999])
def test_one_fall_anywhere_is_seen(at):
    indices = torch.arange(1000, dtype=torch.int32)
    assert cpu.strictly_increasing(indices, 1000)
    indices[at] = indices[at - 1]
    assert not cpu.strictly_increasing(indices, 1000)


@settings(deadline=None, max_examples=100)
@given(
    *[
        st.dictionaries(st.integers(0, 40), st.floats(width=32, allow_nan=False))
        for _ in range(2)
    ],
    st.integers(0, 30),
)
def test_any_two_small_lists(left, right, k):
    lists = []
    for entries in (left, right):
        indices = sorted(entries)
        lists.append(torch.tensor(indices, dtype=torch.int32))
        lists.append(torch.tensor([entries[i] for i in indices], dtype=torch.float32))
    found, wanted = cpu.merge_add(*lists), reference.merge_add(*lists)
    assert same_bits(found[0], wanted[0])
    assert same_bits(found[1].nan_to_num(7), wanted[1].nan_to_num(7))
    for part, other in zip(
        cpu.split(*wanted, k), reference.split(*wanted, k), strict=True
    ):
        assert_same_lists(part, other)
