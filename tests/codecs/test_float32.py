"""Float32 is lossless."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import unhurried
from thinwire.codecs import Float32
from thinwire.errors import WireError


@unhurried
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_every_bit_comes_back(bits):
    values = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    section = Float32().encode(values)
    assert section.numel() == Float32().nbytes(len(bits))
    read = Float32().decode(section, len(bits))
    assert read.view(torch.int32).tolist() == bits


def test_values_are_little_endian():
    section = Float32().encode(torch.tensor([1.0, -2.0]))
    assert bytes(section.tolist()) == bytes.fromhex("0000803f 000000c0")


@pytest.mark.parametrize(("nnz", "nbytes"), [(1, 0), (1, 3), (3, 11), (1, 16), (0, 8)])
def test_too_few_and_too_many_bytes_are_refused(nnz, nbytes):
    said = f"Float32: {nbytes} bytes where {4 * nnz} are expected"
    with pytest.raises(WireError, match=said):
        Float32().decode(torch.zeros(nbytes, dtype=torch.uint8), nnz)
