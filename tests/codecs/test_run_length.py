"""RunLength: worked examples, widths at powers of two, and wrong headers."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given

from tests.codecs.index_lists import listed, lists
from tests.strategies import unhurried
from thinwire import kernels
from thinwire.catalog import VALUE_CODECS
from thinwire.codecs import RunLength, Split
from thinwire.errors import ConfigError, WireError
from thinwire.wire import Packet


def section_of(count, width, runs, reserved=0):
    header = [count & 255, count >> 8 & 255, count >> 16 & 255, count >> 24, width]
    header = torch.tensor([*header, reserved, 0, 0], dtype=torch.uint8)
    return torch.cat([header, kernels.pack_bits(torch.tensor(runs), width)])


@pytest.mark.parametrize(
    ("size", "indices", "runs"),
    [
        (10, [2, 3, 7], [2, 2, 3, 1, 2]),
        (10, [], [10]),
        (10, range(10), [0, 10]),
        (10, [0], [0, 1, 9]),
        (10, [9], [9, 1]),
        (0, [], [0]),
        (1, [0], [0, 1]),
        (600, range(256, 512), [256, 256, 88]),
    ],
)
def test_runs_alternate_zeros_first_in_as_many_bits_as_the_longest(size, indices, runs):
    section = RunLength().encode(listed(indices, size), size)
    width = max(runs).bit_length()
    assert torch.equal(section, section_of(len(runs), width, runs))
    read = RunLength().decode(section, size, len(indices))
    assert read.tolist() == list(indices)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (section_of(5, 2, [2, 2, 3, 1, 2])[:7], "in 7 bytes"),
        (section_of(5, 2, [2, 2, 3, 1, 2])[:9], "9 bytes where 10|1 bytes where 2"),
        (section_of(0, 2, []), "0 run lengths of 3 ones"),
        (section_of(8, 2, [1] * 8), "8 run lengths of 3 ones"),
        (section_of(2**32 - 1, 0, []), "4294967295 run lengths of 3 ones"),
        (section_of(7, 0, []), "7 run lengths in no bits"),
        (section_of(2, 0, []), "2 run lengths in no bits"),
        (section_of(5, 2, [2, 2, 3, 1, 2], reserved=1), "reserved"),
        (
            section_of(1, 63, [10]).clone().index_fill_(0, torch.tensor(4), 64),
            "64 bits",
        ),
        (section_of(5, 2, [2, 2, 3, 1, 1]), "do not make up 10"),
        (section_of(5, 2, [2, 2, 3, 1, 3]), "do not make up 10"),
        (section_of(5, 3, [2, 3, 3, 0, 2]), "do not make up 10"),
        (section_of(5, 63, [2, 2, 3, 1, 2**63 - 1]), "do not make up 10"),
        (section_of(5, 2, [2, 2, 2, 2, 2]), "4 indices, not 3"),
        (section_of(5, 2, [2, 2, 3, 1, 2, 1]), "after the end"),
    ],
)
def test_invalid_sections_are_refused(section, said):
    with pytest.raises(WireError, match=f"run lengths: .*({said})"):
        RunLength().decode(section, 10, 3)


@unhurried
@given(lists())
def test_a_section_is_no_longer_than_the_card_says(drawn):
    size, indices = drawn
    section = RunLength().encode(indices, size)
    bits = (2 * len(indices) + 1) * size.bit_length()
    assert len(section) <= 8 + -(-bits // 8)


@pytest.mark.parametrize("name", VALUE_CODECS)
def test_indices_are_decoded_after_values(name):
    nnz = 2**31 - 1
    section = section_of(2, 31, [0, nnz])
    codec = Split(RunLength(), VALUE_CODECS[name], checksum=False)
    tags = codec.index.tag, codec.value.tag
    for length in (0, 8, 64):
        value = torch.zeros(length, dtype=torch.uint8)
        packet = Packet.build(tags, nnz, nnz, (section, value))
        for backend in (nullcontext(), kernels.by_reference()):
            entered = {}
            with backend, kernels.timed_primitives(entered), pytest.raises(WireError):
                codec.decode(packet, nnz)
            assert "decode_runs" not in entered


def test_more_runs_than_a_header_counts_are_refused():
    many = torch.zeros(1, dtype=torch.int64).expand(2**31)
    with pytest.raises(ConfigError, match=r"2147483648 entries.*Elias-Fano"):
        RunLength().encode(many, 2**32)
