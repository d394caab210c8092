"""The number of parameters of a model that a user's function returns."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from thinwire.errors import ConfigError


def count_parameters(path: str) -> int:
    """Of the module that a function returns: "models.py:build" or "package.models:fn".

    It is called without arguments, and where that works without memory for weights. The
    function of a benchmark, which returns a model and its loss, will do as well.
    """
    made = _made(path, _found(path))
    made = made[0] if isinstance(made, tuple) and made else made
    if not isinstance(made, torch.nn.Module):
        raise ConfigError(
            f"{path} returns a {type(made).__name__}: give a function that returns a "
            "torch.nn.Module"
        )
    count = sum(each.numel() for each in made.parameters() if each.requires_grad)
    if count == 0:
        raise ConfigError(f"the model of {path} has no parameters that are trained")
    return count


def _found(path: str) -> Callable[[], Any]:
    where, _, name = path.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"model is {path!r}: give a file or a module, a colon and a function, such "
            "as models.py:build"
        )
    module = _imported(where, path)
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
        raise ConfigError(
            f"model is {path!r}: {where} has no function {name!r}; it has "
            f"{', '.join(known) or 'none'}"
        )
    found: Callable[[], Any] = function
    return found


def _imported(where: str, path: str) -> ModuleType:
    try:
        if where.endswith(".py"):
            return _from_file(Path(where))
        with _importable(Path.cwd()):
            return importlib.import_module(where)
    except Exception as error:  # a user's file may raise anything
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"model is {path!r}: cannot import {where} ({said})"
        ) from error


def _from_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # So that what it imports from its own folder is found, as when it is run.
    with _importable(file.resolve().parent):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _made(path: str, function: Callable[[], Any]) -> Any:
    # Not every model can be made without memory; what cannot be made at all says so.
    with suppress(Exception), torch.device("meta"):
        return function()
    try:
        return function()
    except Exception as error:
        raise ConfigError(
            f"model is {path!r}: calling it failed ({_said(error)})"
        ) from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
