"""Simulated ranks and real processes give the same bits."""

from functools import partial

import pytest
import torch
from cases import ALL_CASES, CASES, COLLECTIVES, PROCESSES, count, run

from thinwire.collectives import Grade
from thinwire.groups import simulate
from workers import pool

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("ranks", PROCESSES)
@pytest.mark.parametrize("case", CASES)
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


@pytest.mark.parametrize("ranks", PROCESSES)
def test_processes_count_what_the_simulation_counts(ranks):
    for case in ALL_CASES:
        simulated = simulate(ranks, partial(count, case=case))
        assert pool(ranks).run(count, case) == simulated
