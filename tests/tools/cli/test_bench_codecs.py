import json

import pytest
import torch

from thinwire.catalog import codec
from thinwire.tools.bench.codecs import bound, largest
from thinwire.tools.bench.tensors import load
from thinwire.tools.cli import main
from thinwire.tools.cli.bench_codecs import DEFAULT_CODECS


def run(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as end:
        main(("bench", "codecs", *map(str, arguments)))
    return end.value.code or 0, *capsys.readouterr()


def saved(folder, content):
    path = folder / "gradient.pt"
    torch.save(content, path)
    return path


def gradient(size=10_000):
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def test_the_table_names_every_codec_and_fits_80_columns(capsys, tmp_path):
    path = saved(tmp_path, gradient())
    code, out, err = run(capsys, "--tensor", path)
    assert code == 0
    assert "measuring: raw (" in err
    assert "the largest 100 of 10,000 elements (1 %)" in out
    for name in DEFAULT_CODECS.split(","):
        assert f"\n{name} " in out
    assert f"{bound(10_000, 100):.2f}" in out
    assert max(map(len, out.splitlines())) <= 80


def test_figures_for_machines(capsys, tmp_path):
    path, file = saved(tmp_path, gradient()), tmp_path / "figures.json"
    options = ("--tensor", path, "--density", 0.05, "--json", file)
    code, out, _ = run(capsys, *options, "--codecs", "rice+log4, raw")
    assert code == 0
    assert f"Figures written to {file}" in " ".join(out.split())
    figures = json.loads(file.read_text())
    assert (figures["size"], figures["kept"]) == (10_000, 500)
    assert figures["bound_bits"] == bound(10_000, 500)
    assert [row["codec"] for row in figures["codecs"]] == ["rice+log4", "raw"]
    vector = largest(gradient(), 0.05)
    for row in figures["codecs"]:
        body = codec(row["codec"]).encode(vector).body
        assert row["packet_bits"] == 8 * body.numel() / 500
        assert row["encode_ns"]["least"] <= row["encode_ns"]["median"]
    assert figures["codecs"][1]["error"] == 0
    assert 0 < figures["codecs"][0]["error"] < 0.1


def test_a_dict_is_its_tensors_in_a_row(tmp_path):
    parts = {
        "weight": torch.ones(2, 3, dtype=torch.float64),
        "steps": torch.tensor(7),
        "bias": torch.full((2,), 2.0, dtype=torch.bfloat16, requires_grad=True),
    }
    vector = load(saved(tmp_path, parts))
    assert vector.dtype == torch.float32
    assert vector.tolist() == [1.0] * 6 + [2.0] * 2
    model = torch.nn.Linear(3, 2)
    assert len(load(saved(tmp_path, model.state_dict()))) == 8


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (torch.empty(0), "no elements"),
        ({}, "no floating-point numbers"),
        (torch.arange(9), "no floating-point numbers"),
        (torch.zeros(4, dtype=torch.complex64), "no floating-point numbers"),
        ([torch.ones(3)], "is not a dense tensor (list)"),
        (3.5, "is not a dense tensor (float)"),
        ({"model": {"weight": torch.ones(3)}}, "'model' in"),
        (torch.eye(3).to_sparse(), "is not a dense tensor (torch.sparse_coo)"),
        (torch.tensor([1.0, float("nan"), float("inf")]), "2 of the 3 elements"),
        (torch.tensor([1e300, 1.0], dtype=torch.float64), "1 of the 2 elements"),
        (pytest.fail, "it is not a file of tensors"),
    ],
)
def test_what_is_no_gradient_is_refused(capsys, tmp_path, content, said):
    code, out, err = run(capsys, "--tensor", saved(tmp_path, content))
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_a_file_that_is_not_there_or_is_something_else(capsys, tmp_path):
    code, _, err = run(capsys, "--tensor", tmp_path / "missing.pt")
    assert (code, "there is no such file" in " ".join(err.split())) == (2, True)
    code, _, err = run(capsys, "--tensor", tmp_path)
    assert (code, "there is no such file" in " ".join(err.split())) == (2, True)
    for content in (b"", b"no tensor at all", bytes(100)):
        (tmp_path / "text").write_bytes(content)
        code, _, err = run(capsys, "--tensor", tmp_path / "text")
        assert (code, "not a file of tensors" in " ".join(err.split())) == (2, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--density", "0"], "density"),
        (["--density", "2"], "density"),
        (["--codecs", "rice+log9"], "unknown value codec 'log9'"),
        (["--codecs", ""], "unknown codec ''"),
        (["--codecs", "rice+log4,,"], "unknown codec ''"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
    ],
    ids=str,
)
def test_bad_options_are_named_without_a_traceback(capsys, tmp_path, options, said):
    path = saved(tmp_path, gradient(100))
    code, out, err = run(capsys, "--tensor", path, *options)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_a_tensor_must_be_given(capsys):
    code, _, err = run(capsys)
    assert code == 2
    assert "--tensor" in err


def test_a_vector_of_zeros_is_measured(capsys, tmp_path):
    path = saved(tmp_path, torch.zeros(100))
    code, out, _ = run(capsys, "--tensor", path, "--codecs", "rice+log4,raw")
    assert code == 0
    assert "raw" in out
