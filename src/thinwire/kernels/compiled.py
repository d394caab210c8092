"""Kernels that numba compiles: once per machine, not once per process.

The ranks of one machine start together and need the same kernels at the same moment.
Whoever comes first compiles under a lock on the cache's directory; the others wait and
load what it wrote.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from time import monotonic, sleep
from typing import Any

from numba import njit

# Seconds to wait for others before compiling beside them.
PATIENCE = 60.0

_LOCK = "thinwire.lock"
# Nobody calls a kernel from C.
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_compiling = RLock()
_depth = 0


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function without the GIL, on its first call, and keep it on disk."""
    dispatcher: Any = njit(cache=True, **_OPTIONS)(function)
    compile_alone = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        with _first(dispatcher):
            # Asks the disk first: whoever held the lock may have compiled it.
            return compile_alone(signature)

    dispatcher.compile = compile_once
    return dispatcher


def part(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call: into them, and not for itself."""
    return njit(no_cpython_wrapper=True, **_OPTIONS)(function)


@contextmanager
def _first(dispatcher: Any) -> Iterator[None]:
    """Hold the lock of the cache; kernels that a kernel calls compile within it."""
    global _depth  # noqa: PLW0603 - one per process, as the lock is
    with _compiling:
        lock = None if _depth else _opened(dispatcher)
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
            if lock is not None:
                _close(lock)


def _opened(dispatcher: Any) -> int | None:
    """The lock, held; None where there is no cache or no lock to be had."""
    folder = getattr(dispatcher._cache, "cache_path", None)  # noqa: SLF001
    if folder is None:
        return None
    # Without locks (Windows, some network disks) everyone compiles for himself.
    with suppress(ImportError, OSError):
        from fcntl import LOCK_EX, LOCK_NB, flock

        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as numba will
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(os.path.join(folder, _LOCK), flags, 0o600)  # noqa: PTH118
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline:
            with suppress(BlockingIOError):
                flock(lock, LOCK_EX | LOCK_NB)
                return lock
            sleep(0.01)
        os.close(lock)
    return None


def _close(lock: int) -> None:
    """Unlock first: a child that was forked meanwhile has the file open, too."""
    from fcntl import LOCK_UN, flock

    flock(lock, LOCK_UN)
    os.close(lock)
