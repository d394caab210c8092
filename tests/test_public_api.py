"""The names of `import thinwire`, and what it does not import."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import thinwire


def test_all_is_sorted_and_loads():
    # Constants first, then classes, then the rest: the order ruff keeps.
    def place(name):
        parts = [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]
        return not name.isupper(), name[0].islower(), parts

    order = sorted(thinwire.__all__, key=place)
    assert order == thinwire.__all__
    for name in thinwire.__all__:
        assert getattr(thinwire, name) is not None
    assert set(thinwire.__all__) <= set(dir(thinwire))


def test_what_types_see_is_what_runs():
    """What type checkers import, what is loaded lazily and `__all__` are the same."""
    tree = ast.parse(Path(thinwire.__file__).read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*typed, "__version__"} == set(thinwire.__all__)
    for name, module in typed.items():
        assert getattr(thinwire, name) is getattr(import_module(module), name)


def test_packages_are_reachable():
    assert thinwire.hooks.ddp.hook.__name__ == "hook"
    assert thinwire.codecs.Split is import_module("thinwire.codecs").Split
    with pytest.raises(AttributeError, match="no attribute 'attatch'"):
        _ = thinwire.attatch


def test_importing_starts_nothing():
    script = (
        "import threading, torch, sys; before = threading.active_count();"
        "import thinwire; thinwire.attach;"
        "heavy = {'numba', 'triton', 'rich', 'typer'} & set(sys.modules);"
        "assert not heavy, heavy;"
        "assert threading.active_count() == before;"
        "assert not torch.distributed.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_alone_does_not_load_torch():
    script = "import sys, thinwire; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_command_line_starts_without_the_compiler():
    program = (
        "import sys, thinwire.tools.cli.app;"
        "print(sorted({'numba', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
