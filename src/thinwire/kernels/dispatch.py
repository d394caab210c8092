"""Dispatch of primitives: a reference in plain torch, and a faster kernel per device.

`primitive` decorates the reference function in `thinwire.kernels.reference.<family>`.
A call runs the function of the same name in `thinwire.kernels.cpu.<family>` or
`thinwire.kernels.cuda.<family>`, chosen by the device of the first tensor argument.
Where that folder has no such function, the reference runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import profiler

Backend = Literal["cpu", "cuda", "reference"]
Stopwatch = dict[str, float]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)
_by_reference: ContextVar[bool] = ContextVar("by_reference", default=False)
_references: dict[str, Callable[..., Any]] = {}


class Primitive(Protocol[P, R_co]):
    """A function that runs on the device of its arguments."""

    @property
    def reference(self) -> Callable[P, R_co]:
        """The function in plain torch, which runs on any device."""

    def __call__(self, *args: P.args, **options: P.kwargs) -> R_co: ...


class _Kernels(dict[str, Callable[..., Any]]):
    """The functions of one folder by name, each imported at its first use."""

    def __init__(self, folder: Backend) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> Callable[..., Any]:
        missing = self.folder == "cuda" and not _triton_available()
        self[name] = found = implementation(
            name, "reference" if missing else self.folder
        )
        return found


_cpu = _Kernels("cpu")
_cuda = _Kernels("cuda")


@contextmanager
def timed_primitives(stopwatch: Stopwatch) -> Iterator[None]:
    """Add the seconds of each primitive that this thread calls to `stopwatch`."""
    token = _stopwatch.set(stopwatch)
    try:
        yield
    finally:
        _stopwatch.reset(token)


@contextmanager
def by_reference() -> Iterator[None]:
    """Run the reference of each primitive that this thread calls.

    >>> import torch
    >>> from thinwire.kernels import select
    >>> with by_reference():
    ...     select(torch.tensor([1.0, -2.0, 2.0, 0.0]), 2)[0].tolist()
    [1, 2]
    """
    token = _by_reference.set(True)
    try:
        yield
    finally:
        _by_reference.reset(token)


def primitive(function: Callable[P, R]) -> Primitive[P, R]:
    """Make a reference function run the kernel for its first tensor's device."""
    name = function.__name__

    @wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        first = args[0]
        tensor = first if isinstance(first, Tensor) else _first_tensor(args)
        call = _kernel(name, tensor)
        if _stopwatch.get() is None and not profiler._is_profiler_enabled:  # noqa: SLF001
            return call(*args, **options)
        with _recorded(name):
            return call(*args, **options)

    return _registered(function, run)


def recorded(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Record the calls of a function under a name, as those of a primitive are."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*args: P.args, **options: P.kwargs) -> R:
            if _stopwatch.get() is None and not profiler._is_profiler_enabled:  # noqa: SLF001
                return function(*args, **options)
            with _recorded(name):
                return function(*args, **options)

        return run

    return decorate


def cpu_primitive(function: Callable[P, R]) -> Primitive[P, R]:
    """Like `primitive`, for kernels that exist for the CPU only.

    Tensor arguments are copied to the CPU, the result to the first one's device.
    """
    name = function.__name__

    @wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with _recorded(name):
            here = [a.cpu() if isinstance(a, Tensor) else a for a in args]
            result = _kernel(name, here[0])(*here, **options)
            return result.to(args[0].device)

    return _registered(function, run)


def _registered(function: Callable[P, R], run: Any) -> Primitive[P, R]:
    _references[function.__name__] = run.reference = function
    return cast("Primitive[P, R]", run)


def _first_tensor(args: tuple[Any, ...]) -> Tensor | None:
    """The first argument that is a tensor or a list that begins with one."""
    for arg in args:
        while isinstance(arg, tuple | list) and arg:
            arg = arg[0]  # noqa: PLW2901 - one level deeper
        if isinstance(arg, Tensor):
            return arg
    return None


def _kernel(name: str, tensor: Tensor | None) -> Callable[..., Any]:
    if not _by_reference.get():
        if tensor is None or tensor.is_cpu:
            return _cpu[name]
        if tensor.is_cuda:
            return _cuda[name]
    return _references[name]


def implementation(name: str, backend: Backend) -> Callable[..., Any]:
    """The function that a backend runs for a primitive: the reference if it has none.

    >>> implementation("select", "cpu").__module__
    'thinwire.kernels.cpu.accumulate'
    """
    reference = _references[name]
    family = reference.__module__.rpartition(".")[2]
    module = f"thinwire.kernels.{backend}.{family}"
    file = Path(__file__).parent / backend / f"{family}.py"
    if backend == "reference" or not file.exists():
        return reference
    return cast("Callable[..., Any]", getattr(import_module(module), name, reference))


def preload(backend: Backend) -> None:
    """Import every kernel of a backend now instead of at its first call."""
    for name in _references:
        implementation(name, backend)


@cache
def _triton_available() -> bool:
    if torch.version.cuda is None or find_spec("triton") is None:
        return False
    import triton

    # Before 3.4, a launch could not be made to follow, or wait for, another one.
    return hasattr(triton, "knobs")


@contextmanager
def _recorded(name: str) -> Iterator[None]:
    """Record a call in the profiler and the stopwatch; calls inside it are not."""
    stopwatch = _stopwatch.get()
    profiled = profiler._is_profiler_enabled  # noqa: SLF001 - it has no public name
    if stopwatch is None and not profiled:
        yield
        return
    token = _stopwatch.set(None)
    start = perf_counter()
    try:
        if profiled:
            with profiler.record_function(f"thinwire::{name}"):
                yield
        else:
            yield
    finally:
        _stopwatch.reset(token)
        if stopwatch is not None:
            elapsed = perf_counter() - start
            stopwatch[name] = stopwatch.get(name, 0.0) + elapsed
