"""Rice: worked examples, the best width of every block, and sizes."""

import pytest
import torch
from hypothesis import given

from tests.codecs.index_lists import bits_of, bound, listed, lists, section_of, uniform
from tests.strategies import unhurried
from thinwire import kernels
from thinwire.codecs import Rice
from thinwire.errors import WireError


def coded(width, bits):
    """One block: its width, and what follows."""
    return section_of(f"{width:08b}"[::-1] + bits)


def per_entry(indices, size):
    return 8 * len(Rice().encode(indices, size)) / len(indices)


def test_five_of_sixteen_by_hand():
    # Gaps 0, 4, 2, 0, 4: with and without a remainder of one bit they take 15 bits.
    five = listed([0, 5, 8, 9, 14], 16)
    section = Rice().encode(five, 16)
    assert section.tolist()[0] == 0
    assert bits_of(section[1:]) == "1" + "00001" + "001" + "1" + "00001" + "0"
    with_remainders = coded(1, "00000" + "1" + "001" + "01" + "1" + "001")
    read = Rice().decode(with_remainders, 16, 5)
    assert torch.equal(read, five)


def test_remainders_and_quotients_by_hand():
    # 3 = 4 * 0 + 3, 16 = 4 * 4 + 0, 9 = 4 * 2 + 1.
    section = Rice().encode(listed([3, 20, 30], 31), 31)
    assert section.tolist()[0] == 2
    assert bits_of(section[1:]) == "11" + "00" + "10" + "1" + "00001" + "001" + "0"


@unhurried
@given(lists())
def test_no_other_width_makes_a_block_smaller(drawn):
    size, indices = drawn
    widths = Rice().encode(indices, size)[: -(-len(indices) // 256)].tolist()
    gaps = torch.diff(indices.long(), prepend=torch.tensor([-1])) - 1
    for width, block in zip(widths, gaps.split(256), strict=False):
        costs = [len(block) * b + int((block >> b).sum()) for b in range(41)]
        assert costs[width] == min(costs)


@pytest.mark.parametrize("density", [0.5, 0.35, 0.25, 0.1, 0.03, 0.01, 0.002, 0.001])
def test_at_most_0_17_bits_above_the_least_possible(density):
    size = 2**21
    nnz = int(size * density)
    assert per_entry(uniform(size, nnz), size) < bound(size, nnz) + 0.17


@pytest.mark.parametrize(("shape", "density"), [(0.5, 0.1), (0.5, 0.01), (0.2, 0.01)])
def test_clustered_lists_take_less_than_the_best_code_for_all_lists(shape, density):
    torch.manual_seed(0)
    size = 2**20
    gamma = torch.distributions.Gamma(shape, shape / density)
    densities = gamma.sample((size // 4096,)).repeat_interleave(4096)
    indices = (torch.rand(size) < densities).nonzero().view(-1).int()
    assert per_entry(indices, size) < bound(size, len(indices))


def test_one_huge_gap_does_not_make_a_long_section():
    for size in (2**31 - 1, 2**40):
        indices = torch.cat([torch.arange(1000), torch.tensor([size - 1])])
        assert len(Rice().encode(indices, size)) < 2 * 1001 * 40 // 8


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (coded(41, "1" * 300), "remainders of 41 bits"),
        (coded(255, "1" * 300), "remainders of 255 bits"),
        (coded(2, "111"), "3 gaps in 2 bytes"),
        (coded(2, ""), "3 gaps in 1 bytes"),
        (coded(2, "1100101000010000"), "fewer gaps than 3|2 indices, not 3"),
        (coded(2, "11001010000100110"), "after the end|4 indices, not 3"),
        (coded(2, "110010100001001" + "0" * 60), "11 bytes where 3"),
        (coded(2, "1100101" + "0" * 10 + "11"), "strictly from 0 up to 31"),
        (coded(40, "1" * 120 + "111"), "strictly from 0 up to 31"),
        (coded(40, "0" * 120 + "0" * 200 + "111"), "strictly from 0 up to 31"),
    ],
)
def test_invalid_sections_are_refused(section, said):
    with pytest.raises(WireError, match=f"Rice: .*({said})"):
        Rice().decode(section, 31, 3)


def test_indices_that_fall_are_not_encoded():
    with pytest.raises(IndexError, match="do not increase strictly"):
        kernels.encode_rice(torch.tensor([4, 3]))
