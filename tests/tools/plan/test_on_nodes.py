"""Forecasts for hosts with several workers each, on a machine with round numbers."""

import pytest

from tests.speeds import machine_for
from thinwire.cost import Link, Rounds
from thinwire.errors import ConfigError
from thinwire.tools.plan import on_nodes
from thinwire.tools.plan.candidates import compared, with_teams
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.forecast import Scenario

SLOW = Link(100e-6, 12.5e6)
SIZE = 4_000_000


@pytest.fixture(autouse=True)
def round_numbers(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(on_nodes, "_seconds_per_byte", lambda: 1e-10)


def rows_of(method, **given):
    scenario = Scenario(SIZE, 8, SLOW, bucket=4 * SIZE, **given)
    choices = [Choice.parse("dense"), Choice.parse(method)]
    tried = [each for one in choices for each in with_teams(one, 8)]
    found = compared(choices, scenario, machine_for(tried))
    return {row.choice.label: row for row in found}


def test_every_method_is_forecast_both_ways():
    alone, shared = rows_of("topk"), rows_of("topk", workers_per_host=2)
    assert set(alone) == {"dense", "topk"}
    assert set(shared) == {"dense", "topk", "topk nodes=2"}
    # A ring crosses each link once; the lists of both workers go to six others.
    assert shared["dense"].reduction == alone["dense"].reduction
    wire = alone["topk"].reduction.wire
    assert shared["topk"].reduction.wire == pytest.approx(wire * 2 * 6 / 7, rel=1e-3)


def test_nodes_send_half_a_vector_among_half_as_many():
    nodes = rows_of("topk", workers_per_host=2)["topk nodes=2"]
    choice = Choice.parse("topk")
    assert nodes.nbytes == choice.cost(SIZE // 2, 4).nbytes
    own = choice.own_cost(SIZE // 2, 4).nbytes
    assert nodes.reduction.wire == pytest.approx(2 * own / 12.5e6, rel=1e-3)
    share = SIZE // 2
    plain = rows_of("topk")["topk"].reduction.compute
    inside = 3 * 1e-10 * 4 * share
    assert inside < nodes.reduction.compute < plain + inside


def test_one_host_has_no_nodes():
    assert "topk nodes=8" not in rows_of("topk", workers_per_host=8)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="does not divide 8 workers"):
        Scenario(SIZE, 8, SLOW, workers_per_host=3)
    with pytest.raises(ConfigError, match="give 1 or more"):
        Scenario(SIZE, 8, SLOW, workers_per_host=0)
    line = ((1, 1e-6), (1000, 1e-3))
    with pytest.raises(ConfigError, match="give a rate"):
        Scenario(SIZE, 8, SLOW, rounds=Rounds(line, line, line), workers_per_host=2)
