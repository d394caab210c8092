"""`thinwire demo`: on a slow network, without one, and what it says."""

import json
import os
import sys

import pytest
from rich.console import Console

from tests.tools.demo.test_race import run as made
from thinwire import catalog
from thinwire.tools.cli import demo, main
from thinwire.tools.cli.demo_progress import progress
from thinwire.tools.cli.demo_table import Result, show
from thinwire.tools.demo.loop import ProgressEvent
from thinwire.tools.demo.race import Settings
from thinwire.tools.lab import doctor


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code or 0, *capsys.readouterr()


@pytest.fixture
def files(tmp_path, monkeypatch):
    # What is set for debugging must not turn the comparison into dense with dense.
    monkeypatch.setenv("THINWIRE", "dense")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path / "figures.json", tmp_path / "picture.svg"


def arguments(files, *methods):
    figures, picture = files
    options = ["--seconds", "4", "--workers", "2", "--methods", ",".join(methods)]
    return ["demo", *options, "--json", str(figures), "--picture", str(picture)]


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_on_a_slow_network_every_method_gets_the_same_time(capfd, files):
    missing = doctor.missing()
    if missing:
        pytest.skip(f"no lab can be built here: {'; '.join(missing)}")
    code, out, err = run(capfd, *arguments(files, "dense", "powersgd-1", "topk"))
    assert code == 0, err
    figures = json.loads(files[0].read_text())
    assert (figures["network"], figures["equal"]) == ("100 Mbit/s", "time")
    dense, power, topk = figures["methods"]
    check_learning(figures["methods"])
    for row in (dense, power, topk):
        # Or ten steps, on a machine that is too slow for the time.
        assert row["seconds"] > 3 or row["steps"] == 10
    # Counted by the kernel, headers included: what a ring of two sends.
    ring = 4 * figures["parameters"] * dense["steps"]
    assert ring < dense["bytes_sent"] < 1.1 * ring
    assert power["bytes_sent"] / power["steps"] < dense["bytes_sent"] / dense["steps"]
    assert files[1].read_text().startswith("<svg")
    assert str(files[1]) in out
    assert "1 of 3, plain DDP" in err
    assert max(map(len, out[: out.index("Picture")].splitlines())) <= 80


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_without_one_every_method_makes_the_same_steps(capfd, files, monkeypatch):
    monkeypatch.setattr(doctor, "missing", lambda: ["namespaces: ask for them"])
    code, out, err = run(capfd, *arguments(files, "dense", "powersgd-1", "topk"))
    assert code == 0, err
    assert "No slow network can be made here (namespaces: ask for them)." in " ".join(
        out.split()
    )
    figures = json.loads(files[0].read_text())
    assert (figures["network"], figures["equal"]) == ("loopback", "steps")
    dense, power, topk = figures["methods"]
    check_learning(figures["methods"])
    assert power["steps"] <= dense["steps"]
    assert topk["steps"] <= dense["steps"]
    # By the card of a ring of two.
    assert dense["bytes_sent"] == 4 * figures["parameters"] * dense["steps"]
    assert power["bytes_sent"] / power["steps"] < dense["bytes_sent"] / dense["steps"]
    assert not files[1].exists()


def check_learning(rows):
    starts = {row["looks"][0]["loss"] for row in rows}
    assert len(starts) == 1  # the same weights, and the same text
    for row in rows:
        assert row["steps"] >= 10
        assert row["held_out_loss"] < row["looks"][0]["loss"]
        times = [look["seconds"] for look in row["looks"]]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "dense,top-k"], "unknown method 'top-k'"),
        (["--methods", ","], "no method"),
        (["--workers", "0"], "0 workers"),
        (["--seconds", "-3"], "-3.0 seconds"),
        (["--seconds", "nan"], "nan seconds"),
        (["--density", "2"], "density is 2.0"),
        (["--rate", "fast"], "rate is 'fast'"),
        (["--json", "/nowhere/figures.json"], "/nowhere"),
        (["--picture", "/nowhere/loss.svg"], "/nowhere"),
        (["--picture", "/"], "it is a folder"),
        # Not even root may make a file there.
        (["--picture", "/proc/loss.svg"], "cannot write /proc/loss.svg: this user may"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(capsys, options, message):
    code, out, err = run(capsys, "demo", *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_a_rank_of_somebody_else_starts_none(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run(capsys, "demo")
    assert code == 2
    assert "start it alone" in " ".join(err.split())


def test_all_means_the_whole_catalog():
    every = demo.settings(demo.Options(methods="all"))
    assert every.methods == tuple(catalog.METHODS)
    some = demo.settings(demo.Options(methods="topk, dense,topk"))
    assert some.methods == ("topk", "dense")


def said(capsys, *runs, shaped=True):
    chosen = Settings(tuple(each.method for each in runs), seconds=10)
    show(Result(chosen, runs, shaped, "100 Mbit/s"), Console(width=80))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    sentences = out.partition("\n\n")[2]
    assert sentences.count(". ") + sentences.count(".\n") <= 5
    return " ".join(out.split())


def test_a_method_that_is_ahead_is_said_to_be(capsys):
    dense = made("dense", 4.0, 3.2, 3.0, sent=40e6)
    text = said(capsys, dense, made("spardl", 4.0, 2.0, 1.0, sent=4e6))
    assert "spardl reached plain DDP's last loss after 2.5 s instead of 10.0 s." in text
    assert "Plain DDP sends 2.00 MB a step" in text
    assert "spardl sends 0.20 MB, the largest 1 % of the gradient (the rest" in text
    text = said(capsys, dense, made("bf16", 4.0, 2.0, 1.0, sent=20e6))
    assert "bf16 sends 1.00 MB, and made 1.0 times as many steps." in text


def test_a_method_that_is_behind_is_said_to_be(capsys):
    dense = made("dense", 4.0, 3.2, 3.0)
    text = said(capsys, dense, made("spardl", 4.0, 3.9, 3.8))
    assert "spardl did not reach plain DDP's loss in this time." in text
    assert "not reached" in text


def test_a_machine_too_slow_for_the_time_is_said_to_be(capsys):
    slow = made("dense", 4.0, 3.2, seconds=31.0)
    text = said(capsys, slow, made("spardl", 4.0, 3.9, seconds=10.4))
    assert "Each method had 10 s, or as long as 10 steps take here, on 4" in text
    text = said(capsys, made("dense", 4.0, 3.2, seconds=10.4))
    assert "Each method had 10 s on 4 workers" in text


@pytest.mark.parametrize("methods", [("dense",), ("spardl",), ("powersgd-2", "topk")])
@pytest.mark.parametrize("shaped", [True, False])
def test_any_choice_of_methods_has_a_table(capsys, methods, shaped):
    text = said(capsys, *(made(each, 4.0, 3.0) for each in methods), shaped=shaped)
    assert "bit for bit" in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_cuts_no_figures(capsys, width):
    runs = (made("dense", 4.0, 3.2), made("powersgd-4", 4.0, 3.9, sent=123.4e6))
    chosen = Settings(("dense", "powersgd-4"), seconds=10)
    show(Result(chosen, runs, True, "100 Mbit/s"), Console(width=width))
    table, _, sentences = capsys.readouterr().out.partition("\n\n")
    for cell in ("PowerSGD-4", "1,024", "3.90", "123.4", "10.0 s", "tokens/s"):
        assert cell in table
    assert "…" not in table
    assert max(map(len, [*table.splitlines(), *sentences.splitlines()])) <= width
    console = Console(force_terminal=True, width=width)
    with progress(chosen, console) as on_progress:
        on_progress(ProgressEvent("powersgd-4", 1234, 25.0, 1.0, 3.0, 3.25))
    shown = capsys.readouterr().out
    assert all(cell in shown for cell in ("PowerSGD-4", "25 s", "1234", "3.25"))
    assert "…" not in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_with_and_without_a_terminal(capsys, terminal):
    chosen = Settings(("dense", "spardl"), seconds=10)
    console = Console(force_terminal=terminal, width=80)
    with progress(chosen, console) as on_progress:
        for step in range(1, 11):
            fraction = step / 10
            on_progress(ProgressEvent("dense", step, step, fraction, 3.0, 4 - fraction))
    out, err = capsys.readouterr()
    text = out if terminal else err
    assert "plain DDP" in text
    assert "3.00" in text
