"""pack_bits and unpack_bits: the same bytes as one bit at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.backends import reference
from tests.strategies import unhurried
from thinwire import kernels

DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64)


@st.composite
def numbers(draw):
    width = draw(st.integers(0, 63))
    most = 2**width - 1
    return width, draw(st.lists(st.integers(0, most), max_size=70))


@unhurried
@given(numbers())
def test_numbers_come_back(drawn):
    width, values = drawn
    section = kernels.pack_bits(torch.tensor(values, dtype=torch.int64), width)
    number = sum(value << i * width for i, value in enumerate(values))
    nbytes = -(-len(values) * width // 8)
    assert bytes(section.tolist()) == number.to_bytes(nbytes, "little")
    assert kernels.unpack_bits(section, len(values), width).tolist() == values


@unhurried
@given(st.integers(0, 63), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_only_the_low_bits_are_kept(width, values):
    values = torch.tensor(values, dtype=torch.int64)
    section = kernels.pack_bits(values, width)
    assert torch.equal(section, reference.pack_bits(values, width))
    kept = kernels.unpack_bits(section, len(values), width)
    assert torch.equal(kept, values & ((1 << width) - 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [0, 1, 5, 7])
def test_any_whole_number_type_is_packed(dtype, width):
    values = torch.arange(100, dtype=dtype)
    for strided in (values, values[::3]):
        section = kernels.pack_bits(strided, width)
        assert torch.equal(section, reference.pack_bits(strided.long(), width))


@unhurried
@given(st.binary(max_size=40), st.integers(0, 63), st.integers(0, 3), st.data())
def test_backends_decode_any_bytes_equally(data, width, offset, draw):
    section = torch.tensor(list(data), dtype=torch.uint8)[offset:]
    most = 8 * len(section) // width if width else 50
    count = draw.draw(st.integers(0, most))
    read = kernels.unpack_bits(section, count, width)
    assert torch.equal(read, reference.unpack_bits(section, count, width))


@pytest.mark.parametrize("backend", [kernels, reference], ids=["fast", "reference"])
def test_too_few_bytes_and_impossible_widths_are_refused(backend):
    section = torch.zeros(4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="3 times 11 bits in 4 bytes"):
        backend.unpack_bits(section, 3, 11)
    for width in (-1, 64):
        with pytest.raises(ValueError, match=f"{width} bits where 0 to 63"):
            backend.unpack_bits(section, 0, width)
        with pytest.raises(ValueError, match=f"{width} bits where 0 to 63"):
            backend.pack_bits(section, width)


def test_an_index_of_an_empty_vector_is_not_written():
    with pytest.raises(IndexError):
        kernels.encode_bitmap(torch.tensor([0], dtype=torch.int32), 0)
