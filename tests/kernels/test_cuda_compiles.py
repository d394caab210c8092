"""Triton's kernels compile for an H100, without a device.

The interpreter takes programs that the compiler refuses. What kernels are given is
recorded from tests that it runs.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import thinwire.kernels

FOLDER = Path(thinwire.kernels.__file__).parent / "cuda"
ADAMW = ["tests/kernels/test_adamw.py", "-k", "cuda and (references or has_zero)"]
EVERY = ["tests/kernels", "-k", "cuda", f"--ignore={__file__}"]

# These tests do not come to them.
OTHERS = {"elements._differ", "lists._find_infinite"}


def launched(path):
    """The kernels that a module launches and defines itself."""
    tree = ast.walk(ast.parse(path.read_text()))
    nodes = list(tree)
    own = {each.name for each in nodes if isinstance(each, ast.FunctionDef)}
    subscripts = [
        each.func.value
        for each in nodes
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Subscript)
    ]
    names = {each.id for each in subscripts if isinstance(each, ast.Name)}
    return {f"{path.stem}.{name}" for name in names & own}


def run(*arguments, **environment):
    result = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("tests", "modules"),
    [(ADAMW, "adamw"), pytest.param(EVERY, "*", marks=pytest.mark.slow)],
    ids=["adamw", "every"],
)
def test_kernels_compile(tmp_path, tests, modules):
    pytest.importorskip("triton", reason="needs Triton")
    if torch.cuda.is_available():
        pytest.skip("there is a device: kernels are compiled for it")
    file = str(tmp_path / "launches")
    plugins = ("-p", "tests.kernels.launches", "-p", "no:cacheprovider")
    run("pytest", "-q", *plugins, *tests, TRITON_INTERPRET="1", LAUNCHES=file)
    found = run(
        "tests.kernels.launches",
        file,
        TRITON_INTERPRET="0",
        TRITON_CACHE_DIR=str(tmp_path),
    )
    compiled = {line.split()[0] for line in found.splitlines()}
    wanted = set[str]().union(*map(launched, FOLDER.glob(f"{modules}.py")))
    assert wanted
    assert wanted - OTHERS <= compiled
