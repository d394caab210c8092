"""Nothing is lost and all ranks get the same: collectives x codecs x group sizes.

Conservation: sum(x before) = total + sum(x after). Agreement: every rank returns the
same bits. One simulation shows both.
"""

import torch

from tests.laws.cases import (
    BROKEN_NUMBERS,
    COLLECTIVES,
    Case,
    ranks_for,
    run,
    trials,
    usual_ranks,
)
from thinwire.catalog import DEFAULT_CODEC
from thinwire.collectives import Grade
from thinwire.groups import simulate


def gap(steps):
    """What conservation leaves unexplained, in float64, and what was at stake."""
    before = torch.stack([s.before for s in steps]).double()
    after = torch.stack([s.after for s in steps]).double()
    total = steps[0].total.double()
    return before.sum(0) - total - after.sum(0), before.abs().sum(0)


def agree(steps):
    """Whether every rank returned the same bits."""
    first = steps[0]
    return all(
        torch.equal(first.total.view(torch.int32), other.total.view(torch.int32))
        and other.listed == first.listed
        for other in steps
    )


def conserved(steps, *, whole_numbers, lossy=False):
    """Whether nothing is lost, as far as sums of floats can tell.

    On whole numbers even the library's order of additions cannot matter. A lossy codec
    may deliver more than there was, and rounding is of that.
    """
    difference, stake = gap(steps)
    if lossy:
        stake += steps[0].total.abs() + sum(s.after.abs() for s in steps)
    eps = 0.0 if whole_numbers else torch.finfo(torch.float32).eps
    return bool((difference.abs() <= 8 * eps * len(steps) * stake).all())


def check(case, data, ranks):
    seen = simulate(ranks, lambda group: run(group, case, data))
    lossy = case.codec not in (None, "raw", DEFAULT_CODEC)
    broken = any(name in str(case.codec) for name in BROKEN_NUMBERS)
    estimate = COLLECTIVES[case.collective].grade is Grade.NONE
    for steps in zip(*seen, strict=True):
        assert agree(steps), (case, ranks)
        if estimate:
            continue
        whole = data != "reals" and not broken
        kept = conserved(steps, whole_numbers=whole, lossy=lossy)
        assert kept, (case, ranks)


def pytest_generate_tests(metafunc):
    if "data" in metafunc.fixturenames:
        found = trials(full=metafunc.config.getoption("laws"))
        ids = [f"{case}-{data}" for case, data in found]
        metafunc.parametrize(("case", "data"), found, ids=ids)


def test_nothing_is_lost_and_all_agree(case, data, full_laws):
    ranks = ranks_for(case.collective) if full_laws else usual_ranks(case, data)
    for count in ranks:
        check(case, data, count)


def test_only_what_says_so_delivers_estimates():
    names = [name for name, c in COLLECTIVES.items() if c.grade is Grade.NONE]
    assert names == ["gs-sgd-one-round", "s2-median", "s2-mean"]


def one_step():
    case = Case("topk-1%", "raw", 1000)
    return [s[0] for s in simulate(3, lambda g: run(g, case, "integers"))]


def test_the_check_sees_a_single_lost_value():
    steps = one_step()
    steps[1].after[steps[1].after.nonzero()[0]] = 0.0
    assert torch.count_nonzero(gap(steps)[0]) == 1
    assert not conserved(steps, whole_numbers=True)


def test_the_check_sees_a_single_bit():
    steps = one_step()
    assert agree(steps)
    steps[2].total.view(torch.int32)[0] ^= 1
    assert not agree(steps)
