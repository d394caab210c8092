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
    ranks=2,
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
KILLED = replace(PLAIN, endings=(Fault("kill", 3, (1,)), None))


@pytest.mark.parametrize("plan", [PLAIN, KILLED], ids=["bad", "killed"])
def test_nothing_is_found_where_nothing_is_planted(plan):
    outcome = run(plan)
    assert outcome.wrong == []
    # A second life starts anew: nothing was saved.
    assert outcome.steps == 7 if plan is PLAIN else outcome.steps > 7
    assert outcome.faults == ([] if plan is PLAIN else ["kill"])


@pytest.mark.parametrize(
    ("plant", "plan", "said"),
    [
        ("drop", PLAIN, "sums do not hold"),
        ("trace", PLAIN, "a bad batch left a trace"),
        ("drift", PLAIN, "the weights differ between ranks after step 5"),
        ("leak", PLAIN, "more files open"),
        ("forget", PLAIN, "is left behind"),
        ("unnamed", KILLED, "does not name (1,)"),
        ("untyped", KILLED, "RuntimeError"),
    ],
)
def test_what_is_planted_is_found(plant, plan, said):
    outcome = run(plan, plant)
    assert any(said in each for each in outcome.wrong), outcome.wrong
    assert outcome.folder is not None
    assert (outcome.folder / "life0-rank0.log").exists()
    shutil.rmtree(outcome.folder)
    found = [word for each in outcome.wrong for word in each.split()]
    assert not any(Path(w).exists() for w in found if w.startswith("/dev/shm/"))


def test_a_hang_is_found(monkeypatch):
    monkeypatch.setattr("chaos.conductor.LONGEST", 2.0)
    outcome = run(replace(PLAIN, timeout=0.5, steps=5, scales=(4.0,) * 5), "hang")
    assert any("rank 0 hangs after step 4" in each for each in outcome.wrong)
    assert outcome.folder is not None
    shutil.rmtree(outcome.folder)


def test_a_seed_repeats_its_rounds():
    first, again, other = (repr(draw(7, number, lab=True)) for number in (3, 3, 4))
    assert first == again != other


def test_random_rounds():
    plans = [draw(8, number, lab=False) for number in range(40)]
    # Those whose faults need not outlast a timeout, of few processes.
    quick = [plan for plan in plans if plan.timeout == PATIENT and plan.ranks < 4]
    for plan in quick[:2]:
        outcome = run(plan)
        assert outcome.wrong == [], (plan, outcome.folder)
