"""Simulated ranks and real processes give the same bits."""

from functools import partial

import pytest
import torch

from tests.laws.cases import (
    ALL_CASES,
    COLLECTIVES,
    MIDDLE,
    PROCESSES,
    count,
    ranks_for,
    run,
    usual_ranks,
)
from tests.workers import pool
from thinwire.catalog import DEFAULT_CODEC
from thinwire.collectives import Grade
from thinwire.groups import simulate

pytestmark = pytest.mark.processes


def _quick(case, ranks):
    """A large vector on any number of ranks, the default codec and one element on 3."""
    if case.codec in (None, "raw"):
        return case.size == 5003 or (case.size == 1 and ranks == 3)
    return case.codec == DEFAULT_CODEC and case.size == 1000 and ranks in (3, 4)


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        full = metafunc.config.getoption("laws")
        found = [
            (case, ranks)
            for ranks in PROCESSES
            for case in ALL_CASES
            if (full or _quick(case, ranks)) and ranks in ranks_for(case.collective)
        ]
        metafunc.parametrize(("case", "ranks"), found, ids=str)


def test_processes_give_the_bits_of_the_simulation(case, ranks):
    # The order of additions inside the library's all-reduce is its own.
    exact = COLLECTIVES[case.collective].grade is Grade.EXACT
    data = "reals" if exact else "integers"
    simulated = simulate(ranks, lambda g: run(g, case, data))
    for ours, theirs in zip(simulated, pool(ranks).run(run, case, data), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(
                one.total.view(torch.int32), other.total.view(torch.int32)
            )
            assert torch.equal(
                one.after.view(torch.int32), other.after.view(torch.int32)
            )


def counts(group, cases):
    return [count(group, case) for case in cases]


@pytest.mark.parametrize("ranks", PROCESSES)
def test_processes_count_what_the_simulation_counts(ranks):
    cases = [
        case
        for case in ALL_CASES
        if case.size == MIDDLE and ranks in usual_ranks(case, "integers")
    ]
    assert pool(ranks).run(counts, cases) == simulate(
        ranks, partial(counts, cases=cases)
    )
