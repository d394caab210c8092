"""How a primitive is entered: by name for who watches, on the tensor's device."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from time import perf_counter
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import profiler

Stopwatch = dict[str, float]

_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)
_by_reference: ContextVar[bool] = ContextVar("by_reference", default=False)


@contextmanager
def watched(stopwatch: Stopwatch) -> Iterator[None]:
    """Add the seconds of each primitive this thread enters to `stopwatch`."""
    token = _stopwatch.set(stopwatch)
    try:
        yield
    finally:
        _stopwatch.reset(token)


@contextmanager
def by_reference() -> Iterator[None]:
    """Run each primitive this thread enters by its reference: to compare, or to fuzz.

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


def backend(tensor: Tensor) -> ModuleType:
    """The primitives for a tensor's device."""
    if tensor.is_cpu:
        return processor()
    if tensor.is_cuda and not _by_reference.get():
        return _accelerator()
    return _reference()


def processor() -> ModuleType:
    """The primitives that run on the processor, wherever their tensors come from."""
    return _reference() if _by_reference.get() else _cpu()


@cache
def _cpu() -> ModuleType:
    from thinwire.kernels import cpu

    return cpu


@cache
def _accelerator() -> ModuleType:
    """Kernels in Triton, which comes with torch for CUDA, as a rule."""
    if torch.version.cuda is None or find_spec("triton") is None:
        return _reference()
    import triton

    # Before 3.4, programs of a launch could not be told to follow, or wait for, others.
    if not hasattr(triton, "knobs"):
        return _reference()
    from thinwire.kernels import cuda

    return cuda


@cache
def _reference() -> ModuleType:
    from thinwire.kernels import reference

    return reference


class entered:  # noqa: N801 - it reads as a function
    """Tell the profiler and the stopwatch that a primitive runs.

    A class, and asking first who listens: a generator and a record that nobody reads
    would take 20 us an entry, as much as many a list takes.
    """

    __slots__ = ("_name", "_record", "_start", "_stopwatch")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._record = None
        if profiler._is_profiler_enabled:  # noqa: SLF001 - it has no public name
            self._record = profiler.record_function(f"thinwire::{self._name}")
            self._record.__enter__()  # type: ignore[no-untyped-call]
        self._stopwatch = _stopwatch.get()
        if self._stopwatch is not None:
            self._start = perf_counter()

    def __exit__(self, *failure: object) -> None:
        if self._stopwatch is not None:
            elapsed = perf_counter() - self._start
            self._stopwatch[self._name] = self._stopwatch.get(self._name, 0.0) + elapsed
        if self._record is not None:
            self._record.__exit__(*failure)
