"""Int32: what it refuses."""

import pytest
import torch

from thinwire.codecs import Int32
from thinwire.errors import ConfigError, WireError
from thinwire.kernels import index_dtype


def section(indices):
    return torch.tensor(indices, dtype=torch.int32).view(torch.uint8)


@pytest.mark.parametrize(
    "indices",
    [[3, 2], [2, 2], [-1, 2], [-5], [10], [0, 1, 10], [0, 5, 4, 9], [2**31 - 1]],
    ids=str,
)
def test_indices_that_are_no_list_are_refused(indices):
    with pytest.raises(WireError, match="do not increase strictly from 0 up to 10"):
        Int32().decode(section(indices), 10, len(indices))


@pytest.mark.parametrize("indices", [[], [0], [9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_indices_up_to_the_last_are_read(indices):
    assert Int32().decode(section(indices), 10, len(indices)).tolist() == indices


@pytest.mark.parametrize(("nnz", "nbytes"), [(1, 0), (1, 3), (3, 11), (1, 16), (0, 8)])
def test_too_few_and_too_many_bytes_are_refused(nnz, nbytes):
    said = f"Int32: {nbytes} bytes where {4 * nnz} are expected"
    with pytest.raises(WireError, match=said):
        Int32().decode(torch.zeros(nbytes, dtype=torch.uint8), 10, nnz)


def test_a_vector_beyond_32_bits_is_refused():
    with pytest.raises(ConfigError, match=r"2147483649 elements.*scope"):
        Int32().encode(torch.tensor([0]), 2**31 + 1)


@pytest.mark.parametrize("size", [2**31 - 1, 2**31])
def test_the_index_type_follows_the_size(size):
    indices = torch.tensor([0, size - 1], dtype=index_dtype(size))
    read = Int32().decode(Int32().encode(indices, size), size, 2)
    assert read.tolist() == [0, size - 1]
    assert read.dtype == index_dtype(size)
