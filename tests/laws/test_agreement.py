"""Every rank returns the same bits."""

import pytest
import torch
from cases import CASES, DATA, RANKS, run

from thinwire.groups import simulate


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("data", DATA)
def test_totals_are_the_same_bits(case, data):
    for ranks in RANKS:
        for steps in zip(
            *simulate(ranks, lambda g: run(g, case, data, steps=2)), strict=True
        ):
            first = steps[0].total.view(torch.int32)
            for other in steps[1:]:
                assert torch.equal(first, other.total.view(torch.int32)), (case, ranks)
                assert other.listed == steps[0].listed
