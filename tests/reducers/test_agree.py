"""The guard: ranks agree whether a gradient is finite, and on settings."""

import pytest
import torch

from thinwire.choosers import Auto
from thinwire.codecs import Split
from thinwire.cost import Cost
from thinwire.errors import AgreementError
from thinwire.groups import Counted, simulate
from thinwire.layout import Layout
from thinwire.reducers import Pipeline, guard

EDGES = torch.tensor([0, 2, 2, 5])


def agree(pieces, bounds=None, settings=None):
    """The result on every rank; `pieces[r]` is the gradient of rank r."""

    def body(group):
        grad = [torch.tensor(piece) for piece in pieces[group.rank]]
        result = guard.agree(grad, bounds, group, settings or {})
        return result.finite, result.used

    results = simulate(len(pieces), body)
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize(
    ("value", "finite"),
    [
        (0.0, True),
        (0.99 * guard.LIMIT / 3, True),  # three ranks
        (1.01 * guard.LIMIT / 3, False),
        (3.4e38, False),
        (1e-45, True),
        (float("inf"), False),
        (float("-inf"), False),
        (float("nan"), False),
    ],
)
def test_one_value_decides_for_everyone(value, finite):
    calm = [[1.0, 2.0], [3.0]]
    assert agree([calm, [[1.0, 2.0], [value]], calm])[0] is finite


def test_a_segment_is_used_if_any_rank_uses_it():
    zeros = [[0.0] * 5]
    one = [[0.0, 0.0, 0.0, -1e-45, 0.0]]
    assert agree([zeros, zeros], [EDGES]) == (True, [False, False, False])
    assert agree([zeros, one], [EDGES]) == (True, [False, False, True])


def test_segments_count_on_through_the_pieces():
    grad = [[0.0] * 5, [1.0, 0.0]]
    bounds = [EDGES, torch.tensor([0, 1, 2])]
    assert agree([grad], bounds) == (True, [False, False, False, True, False])


@pytest.mark.parametrize("settings", [{}, {"a": 0.1, "b": -3.0, "c": 0.0}])
def test_equal_settings_are_no_news(settings):
    assert agree([[[1.0]], [[2.0]]], settings=settings) == (True, [True])


@pytest.mark.parametrize(
    ("low", "high"), [(0.1, 0.1 + 1e-16), (-1.0, 1.0), (0.0, 5e-324)]
)
def test_settings_that_differ_by_a_bit_name_the_setting_on_every_rank(low, high):
    def body(group):
        settings = {"equal": 1.0, "the knob": high if group.rank == 1 else low}
        with pytest.raises(AgreementError, match=f"the knob: from {low} to {high}"):
            guard.agree([torch.ones(3)], None, group, settings)

    simulate(3, body)


@pytest.mark.parametrize(("segments", "settings"), [(1, 0), (1, 2), (3, 1)])
def test_its_card(segments, settings):
    bounds = None if segments == 1 else [EDGES]

    def body(group):
        counted = Counted(group)
        named = {str(i): 1.0 for i in range(settings)}
        guard.agree([torch.ones(5)], bounds, counted, named)
        return counted.traffic.cost

    card = guard.cost(segments, settings, 4)
    assert card == Cost(2, 16 * (segments + 2 * settings))
    assert simulate(4, body) == [card] * 4


@pytest.mark.parametrize("per_name", [False, True])
def test_a_density_that_one_rank_sets_is_found_before_auto_tries_again(per_name):
    def body(group):
        auto = Auto(0.1)
        state = Pipeline(auto, Split()).init(Layout(("a", "b"), ((30,), (10,))))
        saved = {"ways": auto.signature, "choice": 2, "left": 9}
        state.collective_memory.load_dict(saved)
        mine = auto if group.rank else auto.with_density(0.2)
        grad = torch.ones(40)
        with pytest.raises(AgreementError, match=r"density: from 0\.1 to 0\.2"):
            Pipeline(mine, Split()).reduce_([grad], group, state, per_name=per_name)
        return bool((grad == 1).all()) and not state.memory.x.whole().any()

    assert simulate(2, body) == [True, True]


def test_a_peak_that_is_no_number_is_not_finite():
    def body(group):
        peaks = torch.tensor([1.0, float("nan")])
        return guard.compare(peaks, group, {}).finite

    assert simulate(2, body) == [False, False]
