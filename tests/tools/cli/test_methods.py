import json
import os
import re
import subprocess
import sys

import pytest

from thinwire import catalog
from thinwire.collectives import Dense
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.tools.cli import main
from thinwire.tools.cli.command import _COMMANDS, load
from thinwire.version import __version__


def run(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code or 0, *capsys.readouterr()


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 1000, 25_000_000])
def test_figures_are_those_of_the_cards(capsys, size, ranks):
    options = ["--parameters", str(size), "--workers", str(ranks), "--density", "0.02"]
    code, out, _ = run(capsys, "methods", *options, "--json")
    assert code == 0
    printed = json.loads(out)
    assert [each["name"] for each in printed["methods"]] == list(catalog.METHODS)
    for each in printed["methods"]:
        reducer = catalog.reducer(each["name"], density=0.02)
        assert each["grade"] == reducer.collective.grade.value
        assert (each["codec"] is None) == (reducer.codec is None)
        if each["cost"] is None:
            with pytest.raises(ConfigError, match=re.escape(each["why"])):
                reducer.collective.cost(size, ranks, reducer.codec)
            continue
        cost = reducer.collective.cost(size, ranks, reducer.codec)
        dense = Dense().cost(size, ranks, None).nbytes
        assert each["cost"] == {
            "rounds": cost.rounds,
            "bytes_sent": cost.nbytes,
            "of_dense": cost.nbytes / dense if dense else None,
            "wire_ms": {
                "100 Mbit/s": 1e3 * Link(bandwidth=100e6 / 8).seconds(cost),
                "1 Gbit/s": 1e3 * Link(bandwidth=1e9 / 8).seconds(cost),
                "10 Gbit/s": 1e3 * Link(bandwidth=1e10 / 8).seconds(cost),
            },
        }


def test_the_tables_name_every_method_and_fit_80_columns(capsys):
    code, out, err = run(capsys, "methods", "--parameters", "25M", "--workers", "8")
    assert (code, err) == (0, "")
    for name, method in catalog.METHODS.items():
        assert f" {name} " in out
        assert method.summary.split()[0] in out
    assert "175 MB" in out  # dense: 2 x 100 MB x 7/8
    assert "1400 ms" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (["--parameters", "-1"], "-1"),
        (["--size", "many"], "parameters is 'many'"),
        (["--density", "0"], "0.0"),
        (["--density", "1.5"], "1.5"),
        (["--density", "nan"], "nan"),
        (["--density", "much"], "--density"),
        (["--ranks", "0"], "workers is 0"),
        (["--json", "/no/such/folder/f.json"], "/no/such/folder"),
    ],
)
def test_bad_input_is_named_without_a_traceback(capsys, options, value):
    code, out, err = run(capsys, "methods", *options)
    assert code == 2
    assert out == ""
    assert value in err
    assert "Traceback" not in err


def test_one_worker_is_told_that_it_sends_nothing(capsys):
    code, out, _ = run(capsys, "methods", "--workers", "1")
    assert code == 0
    assert "One worker sends nothing" in out
    assert "0 B" not in out


def test_figures_go_to_a_file_or_take_the_place_of_the_tables(capsys, tmp_path):
    file = tmp_path / "methods.json"
    _, tables, _ = run(capsys, "methods", "--json", str(file))
    assert f"written to {file}" in tables
    _, printed, _ = run(capsys, "methods", "--json")
    assert json.loads(printed) == json.loads(file.read_text())
    assert run(capsys, "methods", "--json", "-")[1] == printed


def test_old_names_of_options_are_taken_and_not_shown(capsys):
    new = run(capsys, "methods", "--parameters", "1M", "--workers", "4", "--json")
    old = run(capsys, "methods", "--size=1e6", "--ranks", "4", "--json")
    assert old == new
    _, shown, _ = run(capsys, "methods", "--help")
    assert "--workers" in shown
    assert "--ranks" not in shown


def test_a_method_without_a_fixed_cost_says_why(capsys, monkeypatch):
    def refuse(self, size, ranks, codec):
        raise ConfigError(f"not for {ranks} ranks")

    monkeypatch.setattr(catalog.METHODS["topk"].collective, "cost", refuse)
    code, out, _ = run(capsys, "methods", "--workers", "3")
    assert code == 0
    assert "topk: not for 3 ranks" in out


@pytest.mark.parametrize("command", ["plan", "bench reduce", "bench train", "methods"])
def test_help_cuts_nothing_at_80_columns(capsys, command):
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_version_and_help(capsys):
    assert run(capsys, "--version")[:2] == (0, f"thinwire {__version__}\n")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert [name for name in _COMMANDS if name not in out] == []


def test_version_help_and_completion_load_no_torch():
    for words in (["--version"], ["--help"]):
        program = (
            "import atexit, sys; from thinwire.tools.cli import main;"
            "atexit.register(lambda: print('torch' in sys.modules));"
            f"main({words})"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "False"


_PROGRAM = """
import sys
from thinwire.tools.cli import main
sys.argv = ["thinwire"]
main()
"""


def test_the_shell_completes_names_of_commands():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={
            **os.environ,
            "_THINWIRE_COMPLETE": "complete_bash",
            "COMP_WORDS": "thinwire pl",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["plan"], done.stderr


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_that_is_listed_can_be_loaded(name):
    assert load(name).name == name


def test_a_misspelt_command_is_named(capsys):
    code, _, err = run(capsys, "pln")
    assert code == 2
    assert "'plan'" in err
