"""The page of results states its runs and what is missing."""

import json
from xml.dom import minidom

import pytest
from experiments.convergence import __main__ as convergence
from experiments.convergence import report


@pytest.fixture
def benchmark():
    return convergence, report


def result_of(run, value, *, better=True, gradients=None):
    """A made-up result."""
    epochs = 6
    values = {
        "metric": [value - 1.0] * (epochs - 1) + [value],
        "bytes_per_step": [1000.0 if run.label == "dense" else 10.0] * epochs,
        "busiest_bytes_per_step": [1000.0] * epochs,
        "rounds_per_step": [14.0] * epochs,
        "residual_norm": [0.0 if run.label == "dense" else 1.0] * epochs,
    }
    if gradients is not None:
        values["gradient_norm"] = gradients
    recipe = {"epochs": epochs, "batch": 2, "learning_rate": 0.1}
    facts = {"device": "a device", "torch": "2", "metric_name": "accuracy, %"}
    counts = {"parameters": 1000, "steps_per_epoch": 3, "card_bytes_per_step": None}
    return {
        **json.loads(run.spec.key),
        **facts,
        **counts,
        "key": run.spec.key,
        "result": value,
        "higher_is_better": better,
        "history": values,
        "resolved_recipe": recipe,
    }


def page_of(benchmark, folder, figures, *, task="resnet20-cifar10", **more):
    convergence, report = benchmark
    runs = [run for run in convergence.matrix({}) if run.spec.task == task]
    results = [
        result_of(run, figures[run.label, run.spec.seed], **more)
        for run in runs
        if (run.label, run.spec.seed) in figures
    ]
    report.write(folder / "results.md", runs, results)
    return (folder / "results.md").read_text()


def line_of(page, label):
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_methods_are_compared_with_dense_of_the_same_seed(benchmark, tmp_path):
    figures = {
        ("dense", 0): 80.0,
        ("dense", 1): 90.0,
        ("topk 1 %", 0): 79.4,
        ("gtopk 1 %", 1): 89.6,
    }
    page = page_of(benchmark, tmp_path, figures)
    assert line_of(page, "topk 1 %")[1:6] == [
        "79.40",
        "-",
        "**-0.60**",
        "10",
        "100.0 x",
    ]
    assert line_of(page, "gtopk 1 %")[1:4] == ["-", "89.60", "-0.40"]
    assert "Behind dense by more than the bound: topk 1 %." in page
    assert "up to 10.00 points apart (dense)" in page


def test_what_was_not_run_is_named_with_its_seeds(benchmark, tmp_path):
    page = page_of(benchmark, tmp_path, {("dense", 0): 80.0})
    assert "topk 1 % (seeds 0, 1)" in page
    assert "dense (seed 1)" in page
    assert "gs-sgd 0.1 % (seed 0)" in page


def test_perplexities_are_compared_in_percent(benchmark, tmp_path):
    figures = {("dense", 0): 100.0, ("topk 1 %", 0): 103.0}
    page = page_of(benchmark, tmp_path, figures, better=False)
    assert "**+3.00 %**" in page


def test_what_clips_locally_is_compared_with_dense_that_does(benchmark, tmp_path):
    note = ", clipped by each worker"
    figures = {
        ("dense", 0): 200.0,
        (f"dense{note}", 0): 100.0,
        (f"topk 1 %{note}", 0): 103.0,
        ("spardl 1 %", 0): 202.0,
    }
    page = page_of(benchmark, tmp_path, figures, task="lstm-wikitext2", better=False)
    against = {label: line_of(page, label)[2:5:2] for label, _ in figures}
    assert against == {
        "dense": ["-", "1.0 x"],
        f"dense{note}": ["-50.00 %", "100.0 x"],
        f"topk 1 %{note}": ["**+3.00 %**", "100.0 x"],
        "spardl 1 %": ["+1.00 %", "100.0 x"],
    }
    assert f"Behind dense by more than the bound: topk 1 %{note}." in page


def test_without_dense_that_clips_alike_the_first_is_compared_with(benchmark, tmp_path):
    figures = {("dense", 0): 100.0, ("topk 1 %, clipped by each worker", 0): 103.0}
    page = page_of(benchmark, tmp_path, figures, task="lstm-wikitext2", better=False)
    assert line_of(page, "topk 1 %, clipped by each worker")[2] == "**+3.00 %**"


def test_residuals_are_told_in_gradients_where_those_were_recorded(benchmark, tmp_path):
    figures = {("dense", 0): 80.0, ("topk 1 %", 0): 79.0}
    without = page_of(benchmark, tmp_path, figures)
    assert line_of(without, "topk 1 %")[-2:] == ["1, 1, 1", "-"]
    assert "the gradients themselves did was not recorded" in without
    half = page_of(benchmark, tmp_path, figures, gradients=[None] * 3 + [0.5, 1.0, 2.0])
    assert line_of(half, "topk 1 %")[-2:] == ["1, 1, 1", "-, 2, 0.5"]
    assert line_of(half, "dense")[-1] == "none"
    assert "between 4.00 and 4.00 times" in half


def test_the_matrix_warms_densities_up_in_runs_of_their_own(benchmark):
    convergence, _ = benchmark
    runs = convergence.matrix({})
    assert len({run.spec.key for run in runs}) == len({run.name for run in runs})
    assert len({run.spec.key for run in runs}) == len(runs)
    warm = {
        (run.spec.task, run.spec.reduction.density): run.spec.recipe["densities"]
        for run in runs
        if "falling" in run.label
    }
    assert len(warm) == 4
    for (_, density), densities in warm.items():
        falling = [*densities, density]
        assert falling == sorted(falling, reverse=True)
        assert falling[0] == 0.25


def test_every_run_has_a_curve(benchmark, tmp_path):
    page_of(benchmark, tmp_path, {("dense", 0): 80.0, ("topk 1 %", 0): 79.0})
    drawn = minidom.parse(str(tmp_path / "results-resnet20-cifar10.svg"))
    texts = [node.firstChild.data for node in drawn.getElementsByTagName("text")]
    assert {"dense: 80.00", "topk 1 %: 79.00"} <= set(texts)
    # Two panels and a key for each; the residual of one of them.
    assert len(drawn.getElementsByTagName("polyline")) == 7


def test_the_kept_results_can_be_read(benchmark, tmp_path):
    convergence, report = benchmark
    results = list(convergence.read(convergence.RESULTS))
    report.write(tmp_path / "results.md", convergence.matrix({}), results)
    known = {run.spec.key for run in convergence.matrix({})}
    assert {result["key"] for result in results} <= known
