"""sum(x before) = total + sum(x after): collectives x codecs x group sizes."""

import pytest
import torch
from cases import CASES, COLLECTIVES, RANKS, run

from thinwire.collectives import Grade
from thinwire.groups import simulate


def gap(steps):
    """What conservation leaves unexplained, in float64, and what was at stake."""
    before = torch.stack([s.before for s in steps]).double()
    after = torch.stack([s.after for s in steps]).double()
    total = steps[0].total.double()
    return before.sum(0) - total - after.sum(0), before.abs().sum(0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("data", ["integers", "equal", "lonely"])
def test_integers_come_out_equal(case, data):
    # On whole numbers even the library's order of additions cannot matter.
    for ranks in RANKS:
        for steps in zip(*simulate(ranks, lambda g: run(g, case, data)), strict=True):
            difference, _ = gap(steps)
            assert torch.count_nonzero(difference) == 0, (case, ranks)


@pytest.mark.parametrize("case", CASES)
def test_reals_come_out_within_rounding(case):
    eps = torch.finfo(torch.float32).eps
    assert COLLECTIVES[case.collective].grade is not Grade.NONE
    for ranks in RANKS:
        for steps in zip(
            *simulate(ranks, lambda g: run(g, case, "reals")), strict=True
        ):
            difference, stake = gap(steps)
            assert (difference.abs() <= 8 * eps * ranks * stake).all(), (case, ranks)


def test_the_check_sees_a_single_lost_value():
    from cases import Case

    steps = simulate(3, lambda g: run(g, Case("topk-1%", "raw", 1000), "integers"))
    lost = [s[0] for s in steps]
    lost[1].after[lost[1].after.nonzero()[0]] = 0.0
    difference, _ = gap(lost)
    assert torch.count_nonzero(difference) == 1
