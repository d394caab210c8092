"""Forecasts on a machine with round numbers: worked examples."""

import pytest

from tests.speeds import machine_for
from thinwire.cost import Cost, Link, Rounds
from thinwire.errors import ConfigError
from thinwire.tools.plan.candidates import Candidates, compared, with_teams
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.forecast import Scenario, forecast, named, reduced
from thinwire.tools.plan.processes import ProcessOverhead

GIGABIT = Link(100e-6, 125e6)
DENSE = Choice.parse("dense")


def predict(method, scenario, **given):
    choice = Choice.parse(method, **given)
    return forecast(choice, scenario, machine_for([choice]))


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def test_dense_on_a_slow_link_takes_the_wire():
    scenario = Scenario(1_000_000, 4, Link(100e-6, 12.5e6))
    reduction = predict("dense", scenario).reduction
    assert reduction.compute == pytest.approx(2e-3 + 1.5 * 0.5e-3)
    assert reduction.wire == pytest.approx(6e6 / 12.5e6)
    assert reduction.transport == pytest.approx(6e6 * 1e-9)
    # Six rounds, no guard: the link's latency and the software's.
    assert reduction.waits == pytest.approx(6 * (100e-6 + 50e-6))
    assert reduction.seconds == pytest.approx(2.75e-3 + 0.48 + 0.9e-3)


def test_on_a_fast_link_the_processor_moves_the_bytes():
    scenario = Scenario(1_000_000, 4, Link(0.0, 1e12))
    reduction = predict("dense", scenario).reduction
    assert reduction.seconds == pytest.approx(2.75e-3 + 6e-3 + 6 * 50e-6)


def test_ranks_that_share_cores_take_turns():
    alone = Scenario(1_000_000, 8, GIGABIT)
    crowded = Scenario(1_000_000, 8, GIGABIT, ranks_per_machine=8, cores=2)
    roomy = Scenario(1_000_000, 8, GIGABIT, ranks_per_machine=8, cores=64)
    choice = Choice.parse("gtopk")
    cost = choice.cost(1_000_000, 8)
    mean = 1e-3 + 1e-3 + 1e-3 + 10e-9 * cost.nbytes + 3 * 100e-6
    compute = predict("gtopk", alone).reduction.compute
    assert compute == pytest.approx(2e-3 + 1.5 * 2 * mean)
    assert predict("gtopk", roomy).reduction == predict("gtopk", alone).reduction
    shared = predict("gtopk", crowded).reduction
    assert shared.compute == pytest.approx(2e-3 + 1.5 * 4 * mean)
    # Eight processes share two cores as these ranks do: it is in what they measured.
    assert shared.transport == predict("gtopk", alone).reduction.transport
    # Three rounds of its own, three of the guard.
    assert shared.waits == pytest.approx((3 + 3) * 200e-6)


def test_one_worker_computes_and_waits_for_nobody():
    alone = Scenario(1_000_000, 1, GIGABIT)
    machine = machine_for([DENSE])
    for name in machine.overheads:
        machine.overheads[name] = ProcessOverhead(
            -1.0, 1.0
        )  # of processes that do not all wait
    reduction = forecast(DENSE, alone, machine).reduction
    assert reduction.seconds == reduction.compute > 0


def test_more_ranks_than_processes_stand_for_are_slower():
    eight = Scenario(1_000_000, 8, GIGABIT, ranks_per_machine=8, cores=2)
    more = Scenario(1_000_000, 8, GIGABIT, ranks_per_machine=24, cores=2)
    assert (eight.sharing.processes, more.sharing.processes) == (8, 8)
    few, many = (
        predict("gtopk", eight).reduction,
        predict("gtopk", more).reduction,
    )
    assert many.transport == pytest.approx(3 * few.transport)
    assert many.waits == pytest.approx(3 * few.waits - 2 * 6 * 100e-6)


def test_rounds_that_were_measured_are_read_off():
    line = ((0, 1e-3), (10_000, 2e-3), (1_000_000, 1.0))
    rounds = Rounds(exchange=((0, 9.0),), direct=((0, 9.0),), all_reduce=line)
    scenario = Scenario(1_000_000, 2, Link(0.5, 125e6), rounds=rounds)
    reduction = predict("dense", scenario).reduction
    # Two rounds of 2 MB each, beyond the last point; the link's own figures are unused.
    assert reduction.waits == pytest.approx(2e-3)
    assert reduction.wire == pytest.approx(2 * (1.0 + 0.998 * 1e6 / 990_000 - 1e-3))


@pytest.mark.parametrize(
    ("method", "used"),
    [("dense", 0.06), ("topk", 3.0), ("bf16", 6.0), ("gtopk", 200.0), ("union", 0.12)],
)
def test_each_method_has_its_kind_of_rounds(method, used):
    rounds = Rounds(exchange=((0, 100.0),), direct=((0, 1.0),), all_reduce=((0, 0.01),))
    scenario = Scenario(100_000, 4, GIGABIT, rounds=rounds)
    guard = 0.0 if method == "dense" else 2 * 100.0
    assert predict(method, scenario).reduction.waits == pytest.approx(used + guard)


def test_a_short_backward_is_followed_by_all_reductions():
    scenario = Scenario(10_000_000, 2, GIGABIT, backward=0.04, bucket=10_000_000)
    forecasted = predict("dense", scenario)
    assert scenario.buckets == 4
    # The first bucket is full after a quarter of the backward pass.
    assert forecasted.step == pytest.approx(0.01 + forecasted.communication)
    assert forecasted.exposed == pytest.approx(forecasted.step - 0.04)


def test_a_long_backward_hides_all_but_the_last_reduction():
    scenario = Scenario(10_000_000, 2, GIGABIT, backward=60.0, bucket=10_000_000)
    forecasted = predict("dense", scenario)
    assert forecasted.exposed == pytest.approx(forecasted.reduction.seconds)


def test_dense_wins_on_a_fast_link_and_loses_on_a_slow_one():
    choices = [Choice.parse(name) for name in ("dense", "spardl", "topk")]
    speeds = machine_for(choices)
    fast = compared(choices, Scenario(1_000_000, 4, Link(5e-6, 12.5e9)), speeds)
    slow = compared(choices, Scenario(100_000_000, 4, Link(1e-4, 12.5e6)), speeds)
    assert fast[0].choice.method == "dense"
    assert slow[-1].choice.method == "dense"
    for rows in (fast, slow):
        assert [row.step for row in rows] == sorted(row.step for row in rows)


def test_thousands_of_workers_and_their_teams():
    choices = Candidates(["spardl", "gtopk", "topk"], [0.001], [None]).choices()
    scenario = Scenario(100_000_000, 4096, GIGABIT, backward=0.2)
    rows = compared(choices, scenario, machine_for(choices))
    assert {row.choice.method for row in rows} == {"dense", "spardl", "gtopk", "topk"}
    teams = [
        dict(r.choice.options)["teams"] for r in rows if "spardl" in r.choice.label
    ]
    assert 1 in teams
    assert len(teams) == 2  # and a better number
    assert len(with_teams(Choice.parse("spardl"), 4096)) == 13


def test_a_choice_is_listed_once_and_dense_always():
    choices = Candidates(["bf16", "topk"], [0.01, 0.001], [None, "raw"]).choices()
    assert [(c.method, c.density, c.codec) for c in choices] == [
        ("dense", None, None),
        ("bf16", None, None),
        ("topk", 0.01, "elias-fano+bfloat16"),
        ("topk", 0.01, "raw"),
        ("topk", 0.001, "elias-fano+bfloat16"),
        ("topk", 0.001, "raw"),
    ]


def test_a_burst_spares_what_a_pause_refills():
    link, choice = Link(0.0, 125e6, burst=50_000), Choice.parse("gtopk")
    scenario = Scenario(14_700_000, 8, link, ranks_per_machine=8, cores=2)
    with_burst = reduced(choice, 14_700_000, scenario, machine_for([choice]))
    own, guard = choice.own_cost(14_700_000, 8), choice.guard_cost(14_700_000, 8)
    seconds = (own.nbytes - 3 * 50_000 + guard.nbytes) / 125e6
    assert with_burst.wire == pytest.approx(seconds)


def test_a_link_known_by_name_carries_headers_too():
    assert named(Link(1e-4, 125e6)).bandwidth == pytest.approx(119.55e6, rel=1e-3)
    assert named(Link()) == Link()


def test_packets_without_a_fixed_length_are_weighed():
    choice = Choice.parse("topk", 0.01, "rice+log4")
    lengths = Cost(3, 3 * 8)
    raw = Choice.parse("topk", 0.01, "raw")
    cost = choice.cost(1_000_000, 4)
    assert cost.rounds == raw.cost(1_000_000, 4).rounds + lengths.rounds
    assert 0.1 < cost.nbytes / raw.cost(1_000_000, 4).nbytes < 0.3


@pytest.mark.parametrize(
    "given",
    [
        {"parameters": 0},
        {"workers": 0},
        {"workers": -3},
        {"backward": -0.1},
        {"backward": float("nan")},
        {"ranks_per_machine": 0},
        {"cores": 0},
    ],
    ids=str,
)
def test_a_scenario_that_cannot_be_is_refused(given):
    name = next(iter(given)).replace("ranks_per_machine", "workers-per-machine")
    with pytest.raises(ConfigError, match=name):
        Scenario(**{"parameters": 10, "workers": 2, "link": GIGABIT, **given})


def test_what_training_would_refuse_is_refused():
    with pytest.raises(ConfigError, match="does not divide 5 ranks"):
        predict("spardl:teams=2", Scenario(1000, 5, GIGABIT))
    for name in ("auto", "top-k", "spardl:team=2", "gtopk:tree", "gtopk:variant=star"):
        with pytest.raises(ConfigError):
            Choice.parse(name)
