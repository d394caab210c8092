"""Programmatic dependent launches wait for the launch before them."""

import ast
from pathlib import Path

import pytest

import thinwire.kernels

FOLDER = Path(thinwire.kernels.__file__).parent / "cuda"
WAITING = [
    (path.stem, function)
    for path in sorted(FOLDER.glob("*.py"))
    if path.stem != "launch"
    for function in ast.walk(ast.parse(path.read_text()))
    if isinstance(function, ast.FunctionDef)
    and "waiting" in [argument.arg for argument in function.args.args]
]


def test_there_are_some():
    assert len(WAITING) > 5


@pytest.mark.parametrize(
    "function",
    [function for _, function in WAITING],
    ids=[f"{module}.{function.name}" for module, function in WAITING],
)
def test_nothing_comes_before_the_wait(function):
    documented = ast.get_docstring(function) is not None
    first = ast.unparse(function.body[1 if documented else 0])
    assert first.startswith("await_others(waiting, ")
