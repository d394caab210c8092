"""DeltaVarint: worked examples, and codes longer than necessary are refused."""

import pytest
import torch

from tests.codecs.index_lists import listed
from thinwire.codecs import DeltaVarint
from thinwire.errors import WireError


def octets(*data):
    return torch.tensor(data, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("indices", "data"),
    [
        ([], []),
        ([0], [0]),
        ([127], [127]),
        ([128], [128, 1]),
        ([5, 6, 400], [5, 0, 0x80 | 9, 3]),
        ([0, 2**14], [0, 0xFF, 0x7F]),
        ([0, 2**14 + 1], [0, 0x80, 0x80, 1]),
    ],
)
def test_gaps_are_written_seven_bits_a_byte(indices, data):
    section = DeltaVarint().encode(listed(indices, 20_000), 20_000)
    assert section.tolist() == data


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (octets(3), "fewer gaps than 2"),
        (octets(3, 128), "fewer gaps than 2"),
        (octets(3, 129, 128), "fewer gaps than 2"),
        (octets(3, 129, 0), "longer than it need be"),
        (octets(3, *[255] * 9, 1), "longer than it need be"),
        (octets(3, 4, 1), "after the end"),
        (octets(3, 4, *[0] * 7), "9 bytes where 2 are expected"),
        (octets(3, 127), "strictly from 0 up to 100"),
        (octets(3, *[255] * 8, 127), "strictly from 0 up to 100"),
    ],
)
def test_invalid_sections_are_refused(section, said):
    with pytest.raises(WireError, match=f"varint gaps: .*{said}"):
        DeltaVarint().decode(section, 100, 2)
