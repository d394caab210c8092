"""SparseVector against dense arithmetic, on whole numbers so that sums are exact."""

from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import families, unhurried, vectors
from thinwire.kernels import index_dtype, strictly_increasing
from thinwire.sparse import SparseVector, keep_count, sum_of


def check(vector, dense):
    """A valid list that stands for `dense`."""
    assert vector.indices.dtype == index_dtype(vector.size)
    assert vector.values.dtype == torch.float32
    assert len(vector.indices) == len(vector.values) == vector.nnz
    assert strictly_increasing(vector.indices, vector.size)
    assert torch.equal(vector.to_dense(), dense)


def listed(*many):
    return set().union(*(vector.indices.tolist() for vector in many))


@unhurried
@given(families(most=2))
def test_add_and_subtract_are_dense_arithmetic(pair):
    a, b = pair[0], pair[-1]
    check(a.add(b), a.to_dense() + b.to_dense())
    check(a.subtract(b), a.to_dense() - b.to_dense())
    assert listed(a.add(b)) == listed(a.subtract(b)) == listed(a, b)


@unhurried
@given(families())
def test_sum_of_is_dense_arithmetic_and_changes_nothing(many):
    before = [vector.to_dict() for vector in many]
    check(sum_of(many), sum(vector.to_dense() for vector in many))
    assert listed(sum_of(many)) == listed(*many)
    assert [vector.to_dict() for vector in many] == before


@unhurried
@given(vectors(values=st.integers(-3, 3).map(float)), st.integers(0, 45))
def test_split_keeps_the_largest_and_gives_ties_to_the_smaller_index(vector, k):
    kept, dropped = vector.split(k)
    entries = vector.to_dict()
    largest = sorted(entries, key=lambda i: (-abs(entries[i]), i))[:k]
    assert kept.to_dict() == {i: entries[i] for i in sorted(largest)}
    assert not listed(kept) & listed(dropped)
    check(kept.add(dropped), vector.to_dense())
    assert kept.add(dropped).nnz == vector.nnz


def of_index_0(*values):
    return [SparseVector.of({0: value}, size=1) for value in values]


@pytest.mark.parametrize(
    ("values", "by_tree", "by_order"),
    [
        ((1e8, 1.0, -1e8, 1.0), 0.0, 1.0),
        ((1e8, -1e8, 1.0), 1.0, 1.0),
        ((1.0, 1e8, -1e8), 0.0, 0.0),
        ((1e8, 1.0, -1e8, 1.0, 3.0), 3.0, 4.0),
    ],
)
def test_sum_of_adds_as_a_balanced_tree(values, by_tree, by_order):
    many = of_index_0(*values)
    assert sum_of(many).to_dict() == {0: by_tree}
    assert reduce(SparseVector.add, many).to_dict() == {0: by_order}


def test_adding_nothing_leaves_a_negative_zero():
    zero = SparseVector.of({2: -0.0}, size=5)
    nothing = SparseVector.of({}, size=5)
    for total in (zero.add(nothing), nothing.add(zero), sum_of([zero])):
        assert torch.signbit(total.values).all()


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(0, torch.int32), (2**31 - 1, torch.int32), (2**31, torch.int64)],
)
def test_indices_are_as_wide_as_the_vector_needs(size, dtype):
    assert index_dtype(size) == dtype
    assert SparseVector.of({}, size).indices.dtype == dtype


def test_indices_beyond_32_bits_survive_the_algebra():
    size = 2**33
    a = SparseVector.of({5: 1.0, 2**32: 2.0}, size)
    b = SparseVector.of({2**32: 4.0, 2**33 - 1: -8.0}, size)
    total = sum_of([a, b, a])
    assert total.to_dict() == {5: 2.0, 2**32: 8.0, 2**33 - 1: -8.0}
    kept, dropped = total.split(2)
    assert kept.to_dict() == {2**32: 8.0, 2**33 - 1: -8.0}
    assert dropped.to_dict() == {5: 2.0}
    assert kept.indices.dtype == dropped.indices.dtype == torch.int64


@pytest.mark.parametrize(
    ("size", "density", "k"),
    [
        (0, 0.01, 0),
        (0, 1.0, 0),
        (1, 0.01, 1),
        (1, 1.0, 1),
        (99, 0.01, 1),
        (199, 0.01, 1),
        (200, 0.01, 2),
        (1000, 0.25, 250),
        (3, 0.999, 2),
        (7, 1.0, 7),
        (10, 1e-9, 1),
    ],
)
def test_keep_count_rounds_down_to_at_least_one(size, density, k):
    assert keep_count(size, density) == k
