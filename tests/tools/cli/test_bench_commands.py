"""`thinwire bench net`, `reduce`, `train` and `report`, as they are typed."""

import json
import os
import sys

import pytest

from tests.tools.bench.figures import reduction, training
from thinwire.errors import ConfigError, GroupError
from thinwire.tools import profile
from thinwire.tools.cli import launch, main
from thinwire.tools.lab import doctor


def run(capture, *arguments):
    with pytest.raises(SystemExit) as end:
        main(("bench", *map(str, arguments)))
    return end.value.code or 0, *capture.readouterr()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Not a rank of anything."""
    for name in ("RANK", "WORLD_SIZE", "THINWIRE_LAB_RATES", "THINWIRE_LAB_DELAY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net", "--workers", "0"], "0 workers"),
        (["net", "--rate", "fast"], "rate is 'fast'"),
        (["net", "--out", "nowhere/link.json"], "there is no folder nowhere"),
        (["reduce", "--size", "many"], "parameters is 'many'"),
        (["reduce", "--parameters", "0"], "0 parameters"),
        (["reduce", "--density", "0"], "density is 0"),
        (["reduce", "--methods", "topk,magic"], "unknown method 'magic'"),
        (["reduce", "--methods", "spardl:teams=3"], "teams"),
        (["reduce", "--codec", "rar"], "unknown codec 'rar'"),
        (["reduce", "--peers", "horovod"], "unknown peer 'horovod'"),
        (["reduce", "--repeats", "1"], "1 repeats"),
        (["reduce", "--json", "nowhere/a.json"], "there is no folder nowhere"),
        (["reduce", "--report", "nowhere/a.html"], "there is no folder nowhere"),
        (["train", "--model", "alexnet"], "unknown model 'alexnet'"),
        (["train", "--scope", "galaxy"], "scope is 'galaxy'"),
        (["train", "--steps", "0"], "0 steps"),
        (["report", "none.json"], "no such file"),
        (["reduce", "--report", "chart.svg"], "ends in .html"),
    ],
)
def test_errors_come_before_anything_is_started(
    capsys, monkeypatch, arguments, message
):
    for command in ("bench_net", "bench_reduce", "bench_train"):
        monkeypatch.setattr(f"thinwire.tools.cli.{command}.run", None)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in " ".join(err.split())


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_reductions_over_loopback_from_the_command_to_the_page(
    capfd, tmp_path, monkeypatch
):
    # A lab was asked for, and cannot be had; this must not turn everything into dense.
    monkeypatch.setattr(doctor, "missing", lambda: ["namespaces: run it with sudo"])
    monkeypatch.setenv("THINWIRE", "dense")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    figures, page = tmp_path / "figures.json", tmp_path / "report.html"
    options = [
        "--parameters",
        "20k",
        "--workers",
        2,
        "--rate",
        "100mbit",
        "--repeats",
        3,
    ]
    options += ["--methods", "topk", "--peers", "none"]
    code, out, err = run(capfd, "reduce", *options, "--json", figures, "--report", page)
    assert code == 0
    assert "reduce: starting" in err  # progress is not in what is piped
    assert "reduce: " not in out
    found = json.loads(figures.read_text())
    check_figures(found)
    said = " ".join(out.split())
    assert "The link is not shaped: local processes over loopback." in said
    assert "No lab can be built here (namespaces: run it with sudo)." in said
    assert "a forecast, not measured" in said
    lines = out[: out.index("Figures written")].splitlines()
    assert max(map(len, lines)) <= 80
    text = page.read_text()
    for row in found["rows"]:
        assert row["label"] in text


def check_figures(found):
    assert (found["size"], found["ranks"], found["place"]) == (20_000, 2, "loopback")
    assert (found["rate"], found["density"]) == (10**8, 0.01)
    dense, topk = found["rows"]
    assert (dense["label"], topk["label"]) == ("torch", "topk")
    assert topk["sent"] < dense["sent"] / 50
    assert dense["forecast"] == pytest.approx(dense["cpu"] + dense["sent"] / 12.5e6)


def test_the_report_is_a_command_of_its_own(capsys, tmp_path):
    file, out = tmp_path / "a.json", tmp_path / "own.html"
    file.write_text(json.dumps(reduction(4)))
    with pytest.raises(SystemExit) as end:
        main(["report", str(file), "--out", str(out)])
    assert not end.value.code
    assert "Use spardl" in out.read_text()
    capsys.readouterr()


def test_several_files_make_one_page(capsys, tmp_path):
    paths = [tmp_path / f"{name}.json" for name in ("a", "b", "c")]
    for path, content in zip(
        paths, (reduction(4), reduction(8), training()), strict=True
    ):
        path.write_text(json.dumps(content))
    out = tmp_path / "all.html"
    code, said, _ = run(capsys, "report", *paths, "--out", out)
    assert code == 0
    assert str(out) in said.replace("\n", "")
    text = out.read_text()
    assert "Scaling" in text
    assert "resnet20" in text


def test_a_network_of_ranks_that_run_already(capsys, tmp_path, monkeypatch):
    """A single rank, as torchrun would start it, gets the error that it is alone."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    code, _, err = run(capsys, "net", "--out", tmp_path / "link.json")
    assert code == 2
    assert "1 rank: a network needs at least 2" in err


def test_where_a_measurement_runs(monkeypatch):
    monkeypatch.setattr(doctor, "missing", list)
    assert launch.place(3).kind == "loopback"
    lab = launch.place(3, "1gbit")
    assert (lab.kind, lab.network, lab.bits, lab.shaped) == ("lab", "lab", 10**9, True)
    monkeypatch.setattr(doctor, "missing", lambda: ["ip: install iproute2"])
    wish = launch.place(3, "1gbit")
    assert (wish.kind, wish.bits, wish.shaped) == ("loopback", 10**9, False)
    assert "install iproute2" in wish.why
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "5")
    ranks = launch.place(3)
    assert (ranks.kind, ranks.workers, ranks.network) == ("ranks", 5, "network")
    monkeypatch.setenv("THINWIRE_LAB_RATES", "1gbit,100mbit,1gbit")
    assert (launch.place(3).network, launch.place(3).bits) == ("lab", 10**8)
    assert launch.place(3).latency == "Latency is not shaped."
    monkeypatch.setenv("THINWIRE_LAB_DELAY", "0.02s")
    assert launch.place(3).latency == "Every message is 20 ms late, one way."
    with pytest.raises(ConfigError, match="leave the rate out"):
        launch.place(3, "1gbit")


def test_what_processes_say_is_sorted():
    heard = []
    listener = launch.Listener(heard.append)
    listener.hear(0, "some warning")
    listener.hear(0, 'thinwire-bench {"progress": {"wh')
    listener.hear(0, 'thinwire-bench {"progress": {"what": "x", "done": 1, "of": 2}}')
    assert [event.done for event in heard] == [1]
    with pytest.raises(GroupError, match=r"(?s)code 1.*some warning"):
        listener.conclude(1)
    listener.hear(0, 'thinwire-bench {"result": {"a": 1}}')
    assert listener.conclude(0) == {"a": 1}
    listener.hear(1, 'thinwire-bench {"error": "teams is 3"}')
    with pytest.raises(GroupError, match="teams is 3"):
        listener.conclude(2)


def test_a_profile_is_saved_for_others_to_read(capfd, tmp_path, monkeypatch):
    found = {}

    def measured(where, job, settings):
        found.update(kind=where.kind, job=job, settings=settings)
        return json.loads((tmp_path / "made.json").read_text())

    from tests.tools.test_profile import PROFILE

    PROFILE.write(tmp_path / "made.json")
    made = json.loads((tmp_path / "made.json").read_text())
    made.pop("thinwire_profile")
    (tmp_path / "made.json").write_text(json.dumps(made))
    monkeypatch.setattr("thinwire.tools.cli.bench_net.run", measured)
    code, out, _ = run(capfd, "net", "--out", tmp_path / "link.json")
    assert code == 0
    assert found == {"kind": "loopback", "job": "net", "settings": {"shaped": False}}
    assert profile.read(tmp_path / "link.json") == PROFILE
    assert "960 Mbit/s" in out
    assert "not shaped" in out
