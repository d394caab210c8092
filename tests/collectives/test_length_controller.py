"""LengthController: the published trace, and the corrections."""

from hypothesis import given
from hypothesis import strategies as st

from thinwire.collectives.length_controller import LengthController


def trace(steps, union, budget=1000, teams=4):
    controller, seen = LengthController.start(budget, teams), []
    for _ in range(steps):
        seen.append(controller.h)
        controller = controller.after(union(controller.h), budget, teams)
    return seen


def test_it_finds_the_h_whose_union_fills_the_budget():
    found = trace(30, lambda h: int(2.5 * h))
    assert found[:10] == [250, 257, 271, 285, 313, 341, 397, 453, 425, 397]
    assert found[10:20] == [411, 404, 397, 400, 403, 402, 401, 399, 400, 401]
    assert set(found[20:]) == {400, 401}


def test_teams_that_agree_entirely_reach_the_budget_and_stay():
    found = trace(40, lambda h: h)
    assert found[:11] == [250, 257, 271, 285, 313, 341, 397, 453, 565, 677, 901]
    assert set(found[11:]) == {1000}


def test_teams_that_never_agree_stay_at_the_least():
    assert set(trace(40, lambda h: 4 * h)[5:]) <= {250, 251, 252, 253}


def test_it_is_never_stuck_with_a_small_budget():
    # (kb - h) / 100 is 0: the published step would stay 0 for ever.
    assert trace(9, lambda h: h, budget=7, teams=3)[-1] == 7


@given(
    budgets=st.lists(st.integers(0, 3000), min_size=1, max_size=60),
    teams=st.integers(2, 9),
    spread=st.floats(0, 1),
)
def test_it_stays_within_its_limits(budgets, teams, spread):
    controller = LengthController.start(budgets[0], teams)
    for budget in budgets:
        controller = controller.clamped(budget, teams)
        assert min(budget, max(1, budget // teams)) <= controller.h <= budget
        assert 1 <= abs(controller.step) <= max(budget, 1)
        union = int(controller.h * (1 + spread * (teams - 1)))
        controller = controller.after(union, budget, teams)
