"""Auto behind DDP: checkpoints, ranks that differ, failures and flushes."""

from unittest.mock import patch

import pytest
import torch

from tests.hooks.test_auto_hook import (
    DENSE,
    SPARSE,
    WHOLE,
    Ledger,
    accumulates,
    attached,
    memories_of,
    settle_on,
    step_given,
)
from tests.hooks.training import (
    SIZES,
    gradients_of,
    residual_of,
)
from tests.workers import pool
from thinwire.errors import AgreementError, InconsistentStateError
from thinwire.groups import Counted

pytestmark = pytest.mark.processes


def resumed(group, folder, choice, at):
    """The choice before and after, and what the next steps ran."""
    model, state = attached()
    for step in range(3):
        step_given(model, group.rank, step)
    settle_on(state, choice)
    for step in range(3, at):
        step_given(model, group.rank, step)
    before = memories_of(state)
    torch.save(state.state_dict(), f"{folder}/{group.rank}")
    expected = []
    for step in range(at, at + 3):
        step_given(model, group.rank, step)
        expected.append(gradients_of(model))
    model, state = attached()
    state.load_state_dict(torch.load(f"{folder}/{group.rank}"))
    after = memories_of(state)
    same = True
    for step, means in zip(range(at, at + 3), expected, strict=True):
        step_given(model, group.rank, step)
        theirs = gradients_of(model)
        same &= all(torch.equal(means[name], theirs[name]) for name in SIZES)
    return before == after, same, state.metrics()["unit_0_choice"]


@pytest.mark.parametrize("choice", [DENSE, WHOLE, SPARSE])
def test_a_resumed_run_keeps_its_choice(tmp_path, choice):
    for kept, same, chosen in pool(2).run(resumed, str(tmp_path), choice, 6):
        assert kept
        assert same
        assert chosen == choice


def apart(group):
    """Rank 1 has another choice in its checkpoint; the error of each rank."""
    model, state = attached()
    for step in range(3):
        step_given(model, group.rank, step)
    settle_on(state, SPARSE if group.rank else WHOLE)
    try:
        step_given(model, group.rank, 3)
    except AgreementError as error:
        return str(error)
    return None


def test_ranks_with_different_choices_get_an_error():
    for message in pool(2).run(apart):
        assert "counters" in message


def other_densities(group, densities):
    """Set while plain DDP runs, where no guard would notice a difference."""
    model, state = attached()
    for step in range(3):
        step_given(model, group.rank, step)
    settle_on(state, DENSE)
    for step in range(3, 5):
        step_given(model, group.rank, step)
    assert not accumulates(state, lambda: step_given(model, group.rank, 5))
    try:
        state.density = densities[group.rank]
    except AgreementError as error:
        return str(error)
    step_given(model, group.rank, 6)
    return state.metrics()["unit_0_choice"]


def test_another_density_is_agreed_on_and_starts_all_over():
    assert pool(2).run(other_densities, [0.2, 0.2]) == [-1.0, -1.0]
    for message in pool(2).run(other_densities, [0.2, 0.3]):
        assert "different densities" in message


def failed(group):
    model, state = attached()
    for step in range(4):
        step_given(model, group.rank, step)
    broken = patch.object(Counted, "all_reduce_", side_effect=RuntimeError("no memory"))
    with broken, pytest.raises(RuntimeError, match="no memory"):
        step_given(model, group.rank, 4)
    with pytest.raises(InconsistentStateError):
        step_given(model, group.rank, 5)
    with pytest.raises(InconsistentStateError):
        state.state_dict()
    return True


def test_a_step_that_fails_leaves_the_state_inconsistent():
    assert pool(2).run(failed) == [True, True]


def flushed(group):
    """Flushing delivers all and forgets the choice: ranks may be others then."""
    model, state = attached()
    ledger = Ledger(model, state)
    for step in range(3):
        ledger.step(group, step)
    settle_on(state, SPARSE)
    ledger.step(group, 3)
    model.zero_grad()
    state.flush()
    rest = {name: group.size * mean for name, mean in gradients_of(model).items()}
    saved = memories_of(state)
    ledger.step(group, 4)
    return ledger.put_in, ledger.delivered, rest, residual_of(state), saved


def test_flush_delivers_all_and_trying_begins_again():
    ranks = pool(2).run(flushed)
    for name in SIZES:
        put_in = sum(rank[0][name] for rank in ranks)
        left = sum(rank[3][name] for rank in ranks)
        assert torch.equal(put_in, ranks[0][1][name] + ranks[0][2][name] + left)
    assert not any(ranks[0][4])
