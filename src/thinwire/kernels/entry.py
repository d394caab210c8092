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
    if tensor.device.type == "cpu":
        return processor()
    if tensor.device.type == "cuda" and not _by_reference.get():
        return _accelerator()
    return _reference()


def processor() -> ModuleType:
    """The primitives that run on the processor, wherever their tensors come from."""
    if _by_reference.get():
        return _reference()
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


def _reference() -> ModuleType:
    from thinwire.kernels import reference

    return reference


@contextmanager
def entered(name: str) -> Iterator[None]:
    """Tell the profiler and the stopwatch that a primitive runs."""
    stopwatch = _stopwatch.get()
    start = perf_counter()
    # Asking first saves 20 us an entry: as much as many a list takes.
    if profiler._is_profiler_enabled:  # noqa: SLF001 - the flag has no public name
        with profiler.record_function(f"thinwire::{name}"):
            yield
    else:
        yield
    if stopwatch is not None:
        stopwatch[name] = stopwatch.get(name, 0.0) + perf_counter() - start
