"""The loop that users write, on real processes."""

from dataclasses import replace

import pytest
from experiments.adamw.loop import Loop, loops
from experiments.adamw.real import section

from tests.experiments.tiny_gpt import RECIPE, TASK
from tests.workers import pool

LOOPS = (
    Loop(),
    Loop(method="spardl", density=0.1, clip="worker", optimizer="torch-adamw"),
    Loop(method="topk", density=0.1, optimizer="torch-adamw"),
)


def trained(group):
    """All loops on one rank, each with a model of its own."""
    from experiments.adamw.loop import train

    task = replace(TASK, recipe=replace(RECIPE, optimizer="torch-adamw", clip=1.0))
    return [train(loop, task) for loop in LOOPS]


@pytest.mark.processes
def test_every_rank_ends_with_the_same_model():
    for first, second in zip(*pool(2).run(trained), strict=True):
        assert first["result"] == second["result"]
        assert first["step_loss"] == second["step_loss"]
        assert len(first["step_loss"]) == 6  # of two micro-batches each
        assert first["bytes_per_step"] > 0


def test_runs_are_named():
    keys = [loop.key(2) for loop in loops()]
    assert len(set(keys)) == len(keys)
    assert loops()[0].key(2) != loops()[0].key(4)
    assert Loop(method="spardl", density=0.02, clip="worker").label == (
        "spardl 2 %, clipped by worker"
    )


def test_the_page_compares_with_dense_of_the_same_processes():
    facts = {"metric_name": "loss", "bytes_per_step": 10.0, "step_loss": [1.0] * 20}
    results = [
        {**facts, "label": label, "seed": 0, "ranks": ranks, "result": result}
        for ranks in (2, 4)
        for label, result in (("dense", 2.0), ("spardl 1 %", 2.0 + ranks / 100))
    ]
    text = "".join(section(results))
    assert "| spardl 1 % | 2.020 | +1.00 % | 10 | none |" in text
    assert "| spardl 1 % | 2.040 | +2.00 % | 10 | none |" in text
    assert list(section([])) == []
