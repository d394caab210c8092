"""Rounds of faults on purpose: a few are run, and find what is planted."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from chaos.conductor import run
from chaos.plan import PATIENT, Fault, Plan, draw

pytestmark = pytest.mark.processes

# Several buckets; the last one is bad in step 4, after the others have been reduced.
BAD = Fault("bad batch", 4, (1,), detail=(0, float("inf"), True))
PLAIN = Plan(
    seed=1,
    number=0,
    ranks=(2,),
    method="topk",
    options={
        "density": 0.05,
        "codec": "raw",
        "feedback": "residual",
        "on_nonfinite": "propagate",
        "scope": "bucket",
    },
    sizes=(300, 900, 600),
    rows=20,
    bucket_mb=0.001,
    steps=7,
    scales=(4.0,) * 7,
    timeout=10.0,
    lab=False,
    host=None,
    every=1,
    passing=(BAD,),
)
KILLED = replace(PLAIN, ranks=(2, 2), endings=(Fault("kill", 3, (1,)), None))
# A save, and then all are gone at once, which is quick: nobody waits for them.
SAVED = replace(
    KILLED,
    options={**PLAIN.options, "feedback": "momentum"},
    passing=(Fault("save", 2), BAD),
    endings=(Fault("kill", 3, (0, 1)), None),
)
MORE = replace(SAVED, ranks=(2, 3))
FEWER = replace(SAVED, ranks=(3, 2), endings=(Fault("kill", 3, (0, 1, 2)), None))
# One is gone when its own file of the second save is written.
IN_A_SAVE = replace(SAVED, endings=(Fault("kill in a save", 3, (1,), detail=0), None))


def test_nothing_is_found_where_nothing_is_planted():
    outcome = run(PLAIN)
    assert outcome.wrong == outcome.faults == []
    assert outcome.steps == 7


@pytest.mark.parametrize(
    ("plan", "faults"),
    [
        (MORE, ["kill", "kill", "restart with other ranks"]),
        (FEWER, ["kill", "kill", "kill", "restart with other ranks"]),
        (IN_A_SAVE, ["kill", "restart"]),
    ],
    ids=["more", "fewer", "in a save"],
)
def test_a_life_goes_on_from_the_last_complete_save(plan, faults):
    outcome = run(plan)
    assert outcome.wrong == []
    assert outcome.faults == faults
    assert outcome.steps == 3 + 5  # the second life begins with step 2


@pytest.mark.parametrize(
    ("plant", "plan", "said"),
    [
        ("drop", PLAIN, "sums do not hold"),
        ("trace", PLAIN, "a bad batch left a trace"),
        ("drift", PLAIN, "the weights differ between ranks after step 5"),
        ("leak", PLAIN, "more files open"),
        ("forget", PLAIN, "is left behind"),
        ("lose", SAVED, "rank 0, step 2: what is loaded is not what was saved"),
        ("lose", FEWER, "the residual over the restart in step 2"),
        ("unnamed", KILLED, "does not name (1,)"),
        ("untyped", KILLED, "RuntimeError"),
    ],
)
def test_what_is_planted_is_found(plant, plan, said):
    outcome = run(plan, plant)
    assert any(said in each for each in outcome.wrong), outcome.wrong
    assert outcome.folder is not None
    assert (outcome.folder / "life0-rank0.log").exists()
    # Those of other runs may be there.
    shared = [each.split()[0] for each in outcome.wrong if each.startswith("/dev/shm")]
    assert bool(shared) == (plant == "forget")
    assert not any(Path(each).exists() for each in shared)
    shutil.rmtree(outcome.folder)


def test_a_hang_is_found(monkeypatch):
    monkeypatch.setattr("chaos.conductor.LONGEST", 2.0)
    outcome = run(replace(PLAIN, timeout=0.5, steps=5, scales=(4.0,) * 5), "hang")
    assert any("rank 0 hangs after step 4" in each for each in outcome.wrong)
    assert outcome.folder is not None
    shutil.rmtree(outcome.folder)


def test_a_seed_repeats_its_rounds():
    first, again, other = (repr(draw(7, number, lab=True)) for number in (3, 3, 4))
    assert first == again != other


def test_a_random_round():
    plans = (draw(127, number, lab=False) for number in range(40))
    # One whose faults need not outlast a timeout, of few processes, then of others.
    plan = next(
        plan
        for plan in plans
        if plan.timeout == PATIENT and max(plan.ranks) < 4 and len(set(plan.ranks)) > 1
    )
    outcome = run(plan)
    assert outcome.wrong == [], (plan, outcome.folder)
    assert "restart with other ranks" in outcome.faults
