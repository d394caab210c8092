import json
import re

import pytest

from thinwire import catalog
from thinwire.collectives import Dense
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.tools.cli import main
from thinwire.version import __version__


def run(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code or 0, *capsys.readouterr()


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 1000, 25_000_000])
def test_figures_are_those_of_the_cards(capsys, size, ranks):
    options = ["--size", str(size), "--ranks", str(ranks), "--density", "0.02"]
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
    code, out, err = run(capsys, "methods", "--size", "25e6", "--ranks", "8")
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
        (["--size", "-1"], "-1"),
        (["--size", "many"], "many"),
        (["--density", "0"], "0.0"),
        (["--density", "1.5"], "1.5"),
        (["--density", "nan"], "nan"),
        (["--density", "much"], "--density"),
        (["--ranks", "0"], "0"),
    ],
)
def test_bad_input_is_named_without_a_traceback(capsys, options, value):
    code, out, err = run(capsys, "methods", *options)
    assert code == 2
    assert out == ""
    assert value in err
    assert "Traceback" not in err


def test_a_method_without_a_fixed_cost_says_why(capsys, monkeypatch):
    def refuse(self, size, ranks, codec):
        raise ConfigError(f"not for {ranks} ranks")

    monkeypatch.setattr(catalog.METHODS["topk"].collective, "cost", refuse)
    code, out, _ = run(capsys, "methods", "--ranks", "3")
    assert code == 0
    assert "topk: not for 3 ranks" in out


def test_version_and_help(capsys):
    assert run(capsys, "--version")[:2] == (0, f"thinwire {__version__}\n")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "methods" in out
    assert "demo" in out
