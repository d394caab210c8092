"""Bitmap: the position of each bit."""

import pytest
import torch

from tests.codecs.index_lists import listed
from thinwire.codecs import Bitmap
from thinwire.errors import WireError


def test_the_first_element_is_the_least_significant_bit_of_the_first_byte():
    section = Bitmap().encode(listed([1, 2, 4, 7, 8], 9), 9)
    assert section.tolist() == [0b10010110, 0b1]


@pytest.mark.parametrize(("size", "nbytes"), [(0, 0), (1, 1), (8, 1), (9, 2)])
def test_a_bit_per_element_in_whole_bytes(size, nbytes):
    assert Bitmap().nbytes(size, 0) == Bitmap().nbytes(size, size) == nbytes


def test_another_number_of_ones_is_refused():
    section = torch.tensor([0b1011], dtype=torch.uint8)
    with pytest.raises(WireError, match="a bitmap: 3 indices, not 2"):
        Bitmap().decode(section, 8, 2)


@pytest.mark.parametrize("data", [[1, 2], [1, 0, 4]])
def test_ones_beyond_the_last_element_are_refused(data):
    section = torch.tensor(data, dtype=torch.uint8)
    with pytest.raises(WireError, match="do not increase strictly from 0 up to 9"):
        Bitmap().decode(section, 9, 2)
