import json
import math
from statistics import mean

import pytest

from thinwire import catalog
from thinwire.choosers.auto_warmup import AutoWarmup, OrDense
from thinwire.collectives import AllGather, Dense
from thinwire.tools.cli import demo, main

METHODS = ("dense", "topk")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code or 0, *capsys.readouterr()


@pytest.mark.processes
def test_the_demo_end_to_end(capfd, tmp_path, monkeypatch):
    # What is set for debugging must not turn the comparison into dense with dense.
    monkeypatch.setenv("THINWIRE", "dense")
    file = tmp_path / "figures.json"
    options = ["--seconds", "6", "--workers", "2", "--json", str(file)]
    code, out, err = run(capfd, "demo", "--methods", ",".join(METHODS), *options)
    assert (code, err) == (0, "")
    figures = json.loads(file.read_text())
    check_figures(figures)
    check_table(out, figures)


def check_figures(figures):
    assert [row["method"] for row in figures["methods"]] == list(METHODS)
    assert figures["workers"] == 2
    assert figures["replicas_identical"]
    size = figures["parameters"]
    dense, topk = figures["methods"]
    for row in (dense, topk):
        assert row["steps"] == len(row["losses"]) >= 10
        assert all(map(math.isfinite, row["losses"]))
        assert row["train_loss"]["end"] < row["train_loss"]["start"]
        assert row["held_out_loss"]["end"] < row["held_out_loss"]["start"]
        assert row["step_ms"] > 0
    # The same weights and the same first batch, whatever the method.
    assert dense["losses"][0] == topk["losses"][0]
    assert dense["held_out_loss"]["start"] == topk["held_out_loss"]["start"]
    assert figures["common_steps"] == min(dense["steps"], topk["steps"])
    # Clipping and the guard send a few bytes more.
    every = Dense().cost(size, 2, None).nbytes
    assert every <= dense["bytes_sent_per_step"] <= every + 100
    # Buckets round k down one by one.
    codec, warmup = catalog.reducer("topk").codec, AutoWarmup(AllGather(0.01))
    cards = [
        OrDense(warmup.at(step)).cost(size, 2, codec).nbytes
        for step in range(topk["steps"])
    ]
    assert topk["bytes_sent_per_step"] == pytest.approx(mean(cards), rel=0.02)
    wire = topk["computed_wire_ms"]["1 Gbit/s"]
    assert wire == pytest.approx(topk["bytes_sent_per_step"] / 125e3, rel=1e-4)


def check_table(out, figures):
    for row in figures["methods"]:
        assert f"\n{row['method']} " in out
    assert "bit-identical on all 2 workers" in out
    assert "computed, not measured" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "dense,top-k"], "unknown method 'top-k'"),
        (["--methods", ","], "no method"),
        (["--workers", "0"], "0 workers"),
        (["--seconds", "-3"], "-3.0 seconds"),
        (["--seconds", "nan"], "nan seconds"),
        (["--density", "2"], "density is 2.0"),
        (["--json", "/nowhere/figures.json"], "/nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(capsys, options, message):
    code, out, err = run(capsys, "demo", *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_all_means_the_whole_catalog():
    assert demo.settings("all", 4, 60, 0.01).methods == tuple(catalog.METHODS)
    assert demo.settings("topk, dense,topk", 4, 60, 0.01).methods == ("topk", "dense")
