"""The runs under AdamW and the page that is written from them."""

import argparse
import json

import pytest
from experiments.adamw import report
from experiments.adamw.__main__ import CAMPAIGN, RESULTS
from experiments.adamw.matrix import FOLDERS, STAGES, matrix
from experiments.convergence.campaign import compacted, with_needed
from experiments.tasks import TASKS
from experiments.train.run import read

RATE = 1e-3


def result_of(run, value, *, better=False, losses=None):
    """A made-up result."""
    recipe = {"epochs": 2, "batch": 8, "learning_rate": RATE, **run.spec.recipe}
    return {
        **json.loads(run.spec.key),
        "key": run.spec.key,
        "result": value,
        "best": value - 0.5,
        "higher_is_better": better,
        "metric_name": "bits per byte",
        "parameters": 1000,
        "steps_per_epoch": 250,
        "device": "a device",
        "torch": "2",
        "resolved_recipe": recipe,
        "history": {
            "bytes_per_step": [3000.0, 1000.0],
            "rounds_per_step": [14.0, 7.0],
            "step_loss": losses or [2.0] * 200,
        },
    }


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch):
    """The page has sections of its own for the runs on real processes."""
    monkeypatch.setattr(report, "recorded", list)


def page_of(folder, figures, *, task="gpt-bytes", **more):
    """A page of one task; figures by label, learning rate and seed."""
    runs = [run for run in matrix({}) if run.spec.task == task]
    results = [
        result_of(run, figures[place], **more)
        for run in runs
        for place in [
            (run.label, run.spec.recipe.get("learning_rate", RATE), run.spec.seed)
        ]
        if place in figures
    ]
    report.write(folder / "adamw.md", runs, results)
    return (folder / "adamw.md").read_text()


def lines_of(page, label):
    lines = [line for line in page.splitlines() if line.startswith(f"| {label} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_runs_are_compared_with_dense_at_its_rate(tmp_path):
    figures = {
        ("dense", RATE, 0): 1.6,
        ("dense", RATE, 1): 1.7,
        ("spardl 1 %", RATE, 0): 1.608,
        ("spardl 1 %", 2e-3, 0): 1.64,
    }
    page = page_of(tmp_path, figures)
    assert lines_of(page, "dense") == [
        ["dense", "0.001", "1.600", "1.700", "-", "2,000", "10.5", "none"]
    ]
    same, other = lines_of(page, "spardl 1 %")
    assert same[1:5] == ["0.001", "1.608", "-", "+0.50 %"]
    assert other[1:4] == ["0.002", "1.640", "**+2.50 %**"]
    assert page.index("At other learning rates") > page.index("| spardl 1 %")
    assert "dense at 0.002 (seed 0)" in page


def test_spikes_are_told(tmp_path):
    figures = {("dense", RATE, 0): 1.6}
    short = [2.0] * 50 + [9.0] + [2.0] * 149
    assert "1, recovered (seed 0)" in page_of(tmp_path, figures, losses=short)
    page = page_of(tmp_path, figures, losses=[2.0] * 50 + [3.0] * 150)
    assert "**not recovered** (seed 0, step 53, 148 steps, 1.50 x)" in page


def test_accuracies_are_compared_in_points(tmp_path):
    figures = {("dense", RATE, 0): 90.0, ("spardl 1 %", RATE, 0): 89.0}
    page = page_of(tmp_path, figures, task="vit-cifar10", better=True)
    ((*_, against, _, _, _),) = lines_of(page, "spardl 1 %")
    assert against == "**-1.00**"


def test_the_best_evaluation_counts_where_it_was_published(tmp_path):
    page = page_of(tmp_path, {("dense", RATE, 0): 2.0}, task="nanogpt-shakespeare")
    assert lines_of(page, "dense")[0][2] == "1.500"


def test_the_matrix_names_tasks_and_stages_that_are_there():
    runs = matrix({})
    assert {run.spec.task for run in runs} == set(FOLDERS) <= set(TASKS)
    assert {run.stage for run in runs} == set(STAGES)
    assert len({run.spec.key for run in runs}) == len(runs)
    assert len({run.name for run in runs}) == len(runs)


@pytest.mark.parametrize("there", [False, True])
def test_what_a_run_needs_is_made_before_it(tmp_path, there):
    runs = matrix({})
    (maker,) = [run for run in runs if run.leaves]
    assert maker.label == "dense"
    user = next(run for run in runs if run.needs)
    if there:
        (tmp_path / maker.leaves).touch()
    arguments = argparse.Namespace(data=tmp_path, recipes={})
    before = with_needed([user], CAMPAIGN, arguments)
    assert before == ([user] if there else [maker, user])
    assert with_needed([user, maker], CAMPAIGN, arguments) == [user, maker]


def test_losses_of_steps_are_kept():
    (run,) = [run for run in matrix({}) if run.leaves]
    kept = compacted(result_of(run, 1.0), CAMPAIGN.dropped)
    assert len(kept["history"]["step_loss"]) == 200


def test_the_kept_results_can_be_read(tmp_path):
    results = list(read(RESULTS))
    report.write(tmp_path / "adamw.md", matrix({}), results)
    assert {result["key"] for result in results} <= {r.spec.key for r in matrix({})}
