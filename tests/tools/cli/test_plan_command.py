import json

import pytest

from tests.speeds import machine_for
from thinwire.tools.cli import main
from thinwire.tools.plan import machine
from thinwire.tools.profile import Profile

SIZE = ("--parameters", "100e6")
USUAL = (*SIZE, "--workers", "32", "--link", "1gbit,100us", "--backward", "0.2s")
PROFILE = {
    "latency": 2e-4,
    "pair": 1.2e8,
    "together": 1.1e8,
    "flow": 1.2e8,
    "flows": 1.2e8,
    "latencies": ((0.0, 2e-4), (2e-4, 0.0)),
    "bandwidths": ((0.0, 1.2e8), (1.2e8, 0.0)),
    "exchange": ((8, 2e-4), (4096, 3e-4)),
    "direct": ((8, 1e-4), (4096, 2e-4)),
    "all_reduce": ((8, 1e-4),),
    "ranks": 2,
    "hosts": 2,
    "ranks_per_host": 1,
    "ranks_per_machine": 6,
    "cores": 3,
    "shaped": True,
    "backend": "gloo",
    "date": "2026-01-01T00:00:00",
}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """A machine of round numbers, which takes no time to measure."""
    monkeypatch.setattr(
        machine, "known", lambda choices, **options: machine_for(choices)
    )


def run(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as end:
        main(("plan", *map(str, arguments)))
    return end.value.code or 0, *capsys.readouterr()


def test_the_table_names_every_method_and_fits_80_columns(capsys):
    code, out, err = run(capsys, *USUAL)
    assert (code, err) == (0, "")
    for name in ("dense", "bf16", "topk", "gtopk", "spardl teams=1", "gs-sgd"):
        assert f"\n{name} " in out
    assert out.startswith("Take spardl teams=")
    assert "100 M parameters in 16 buckets, 32 workers" in out
    assert max(map(len, out.splitlines())) <= 80


def test_dense_is_best_is_said_first(capsys):
    options = ("--parameters", "1e5", "--workers", 4, "--link", "100gbit,5us")
    methods = ("--backward", "0s", "--methods", "topk,spardl")
    code, out, _ = run(capsys, *options, *methods)
    assert code == 0
    assert out.startswith("Dense is best: leave DDP as it is.\n")
    assert out.index("\ndense ") < out.index("\nspardl ")


def test_a_small_gain_is_not_believed(capsys, tmp_path):
    # Where backward takes ten seconds, what is left to win is the last bucket.
    options = (*SIZE, "--workers", 4, "--link", "1gbit", "--backward", "10s")
    code, out, _ = run(capsys, *options, "--json", tmp_path / "plan.json")
    assert code == 0
    assert "(--link 1gbit,100us): dense is as good" in " ".join(out.split())
    assert json.loads((tmp_path / "plan.json").read_text())["dense_is_best"]


def test_figures_for_machines(capsys, tmp_path):
    file = tmp_path / "plan.json"
    options = ("--methods", "topk,spardl", "--density", "0.02", "--json", file)
    code, out, _ = run(capsys, *USUAL, *options, "--codecs", "raw,rice+log4")
    assert code == 0
    assert "rice+log4" in out
    plan = json.loads(file.read_text())
    assert (plan["parameters"], plan["workers"]) == (100_000_000, 32)
    assert (plan["buckets"], plan["backward_s"]) == (16, 0.2)
    rows = {(row["method"], row["codec"]): row for row in plan["forecasts"]}
    assert {codec for _, codec in rows} == {None, "raw", "rice+log4"}
    dense = rows["dense", None]
    assert dense["bytes_sent"] == 16 * dense["bucket"]["bytes_sent"]
    assert dense["bytes_sent"] == pytest.approx(4e8 * 2 * 31 / 32, rel=1e-3)
    for row in plan["forecasts"]:
        assert row["exposed_s"] == pytest.approx(row["step_s"] - 0.2)


def test_a_page_is_drawn(capsys, tmp_path):
    file = tmp_path / "plan.html"
    for option in ("--report", "--chart"):
        code, out, _ = run(capsys, *USUAL, option, file)
        assert code == 0
        assert "Report written to" in out
        page = file.read_text()
        file.unlink()
        assert page.startswith("<!doctype html>")
        assert "Use spardl teams=" in page
        assert "<script" not in page


def test_low_densities_are_shown_with_what_they_cost_and_not_recommended(
    capsys, tmp_path
):
    file = tmp_path / "plan.json"
    _, out, _ = run(capsys, *USUAL, "--json", file)
    plan = json.loads(file.read_text())
    rows = {row["label"]: row for row in plan["forecasts"]}
    fastest = min(plan["forecasts"], key=lambda row: row["step_s"])
    assert fastest["density"] == 0.001
    assert plan["recommended"].endswith("at 1 %")
    assert plan["recommended"].startswith("spardl")
    held = [row["held_accuracy"] for row in plan["forecasts"]]
    assert held == sorted(held, reverse=True)
    for wanted in (True, False):
        steps = [
            row["step_s"] for row in plan["forecasts"] if row["held_accuracy"] == wanted
        ]
        assert steps == sorted(steps)
    assert rows["gtopk at 0.1 %"]["behind_dense"] == {"images": 3.54, "language": 30.19}
    assert "3.5 pt, 30 %" in out
    assert "at 0.1 % would be" in " ".join(out.split())
    assert rows["bf16"]["behind_dense"] is None


def test_only_low_densities_are_ranked_if_only_they_are_asked_for(capsys):
    options = ("--density", "0.001", "--methods", "gtopk")
    _, out, _ = run(capsys, *USUAL, *options)
    assert out.startswith("Take gtopk at 0.1 %: a step")
    assert "3.5 points behind dense on images" in " ".join(out.split())


def test_one_worker_is_one(capsys):
    code, out, _ = run(capsys, *SIZE, "--workers", 1, "--link", "1gbit,100us")
    assert code == 0
    assert "in 16 buckets, 1 worker, links of 120 MB/s" in " ".join(out.split())


def test_x_dense_is_a_speed_up(capsys):
    _, out, _ = run(capsys, *USUAL, "--methods", "spardl", "--density", "0.01")
    (line,) = [line for line in out.splitlines() if line.startswith("spardl teams=1")]
    (dense,) = [line for line in out.splitlines() if line.startswith("dense ")]
    times = float(line.split("%")[1].split("ms")[1].split()[0])
    assert times > 1
    assert dense.split()[4] == "1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--link", "1gbit", "--backward", "1s"], "With no latency (--link 1gbit,"),
        (["--link", "1gbit,5us"], "With no backward pass (--backward 0.2s): take"),
        (["--link", "1gbit"], "100us) and no backward pass (--backward 0.2s): take"),
        (["--link", "1gbit,0us", "--backward", "0s"], "Take "),
    ],
    ids=" ".join,
)
def test_what_is_taken_to_be_nothing_is_in_the_first_line(capsys, options, said):
    _, out, _ = run(capsys, *SIZE, "--workers", 32, *options)
    headline = " ".join(out.split())[:150]
    assert said in headline


def test_other_spellings_and_old_names_are_understood(capsys, tmp_path):
    found = []
    for size, link in (("100e6", "1gbit,100us"), ("100M", "1Gbps,100us")):
        options = ("--parameters", size, "--workers", 8, "--link", link)
        sharing = "--ranks-per-machine" if found else "--workers-per-machine"
        code, out, err = run(capsys, *options, sharing, 2, "--json")
        assert (code, err) == (0, "")
        found.append(json.loads(out))
    assert found[0] == found[1]
    assert found[0]["ranks_per_machine"] == 2


def test_a_profile_says_what_the_link_is_and_who_shares_cores(capsys, tmp_path):
    Profile(**PROFILE).write(tmp_path / "link.json")
    options = (*SIZE, "--workers", 4, "--link", tmp_path / "link.json")
    file = tmp_path / "plan.json"
    code, _, err = run(capsys, *options, "--json", file)
    assert (code, err) == (0, "")
    plan = json.loads(file.read_text())
    assert plan["link"] == {
        "latency_s": 2e-4,
        "bytes_per_s": 1.1e8,
        "measured": True,
    }
    assert (plan["ranks_per_machine"], plan["cores"]) == (6, 3)


def test_a_model_is_counted(capsys, tmp_path):
    file, made = tmp_path / "models.py", tmp_path / "plan.json"
    file.write_text(
        "import torch\n"
        "def build():\n"
        "    model = torch.nn.Linear(1000, 999)\n"
        "    model.bias.requires_grad_(False)\n"
        "    return model\n"
        "def with_loss(): return build(), lambda model: model\n"
        "def other(): return 3\n"
        "def broken(): raise RuntimeError('no such luck')\n"
    )
    options = ("--workers", 4, "--link", "1gbit", "--json", made)
    code, _, err = run(capsys, "--model", f"{file}:build", *options)
    assert (code, err) == (0, "")
    assert json.loads(made.read_text())["parameters"] == 999_000
    code, _, _ = run(capsys, "--model", f"{file}:with_loss", *options)
    assert (code, json.loads(made.read_text())["parameters"]) == (0, 999_000)
    for name, said in {
        "other": "returns a int",
        "broken": "no such luck",
        "missing": "it has build, with_loss, other, broken",
    }.items():
        code, _, err = run(capsys, "--model", f"{file}:{name}", *options)
        assert code == 2
        assert said in " ".join(err.split())
    code, _, err = run(capsys, "--model", "thinwire.tools.demo.model:Model", *options)
    assert code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "topp"], "unknown method 'topp'"),
        (["--methods", "spardl:teams=5"], "does not divide 32 ranks"),
        (["--methods", "spardl:teams"], "name=value"),
        (["--methods", "topk:colour=red"], "unknown option 'colour'"),
        (["--link", "fast"], "rate is 'fast'"),
        (["--link", "1gbit,soon"], "latency of the link is 'soon'"),
        (["--link", "1gbit,-5us"], "'-5us'"),
        (["--link", "nowhere.json"], "there is no such file"),
        (["--backward", "-1s"], "backward is '-1s'"),
        (["--backward", "long"], "backward is 'long'"),
        (["--parameters", "-5"], "parameters is -5"),
        (["--parameters", "many"], "parameters is 'many'"),
        (["--model", "models"], "one of them"),
        (["--workers", "0"], "workers is 0"),
        (["--density", "0"], "density is 0.0"),
        (["--density", "0.1,much"], "density is 'much'"),
        (["--codecs", "rise+log4"], "unknown index codec 'rise'"),
        (["--workers-per-machine", "0"], "workers-per-machine is 0"),
        (["--cores", "-2"], "cores is -2"),
        (["--bucket-mb", "0"], "bucket-mb is 0"),
        (["--bucket-mb", "nan"], "bucket-mb is nan"),
        (["--bucket-mb", "inf"], "bucket-mb is inf"),
        (["--bucket-mb", "1e-9"], "bucket-mb is 1e-09"),
        (["--workers-per-host", "5"], "workers-per-host is 5"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["--report", "plan.png"], "ends in .html"),
    ],
    ids=str,
)
def test_bad_options_are_named_without_a_traceback(capsys, options, said):
    code, out, err = run(capsys, *USUAL, *options)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize("path", ["nowhere.py:fn", "no.such.module:fn", "plain", ":fn"])
def test_a_model_that_is_not_there(capsys, path):
    code, _, err = run(capsys, "--model", path, "--workers", 2, "--link", "1gbit")
    assert code == 2
    assert path in " ".join(err.split())


def test_a_file_that_is_no_profile(capsys, tmp_path):
    (tmp_path / "link.json").write_text("[]")
    options = (*SIZE, "--workers", 4, "--link", tmp_path / "link.json")
    code, _, err = run(capsys, *options)
    assert (code, "not a link profile" in " ".join(err.split())) == (2, True)
