"""Kernels that numba compiles: once per machine, not once per process.

The ranks of one machine start together and need the same kernels at the same moment.
Whoever comes first compiles under a lock on the cache's directory; the others wait and
load what it wrote.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any

from numba import njit

_LOCK = "thinwire.lock"
_compiling = RLock()
_depth = 0


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function without the GIL, on its first call, and keep it on disk."""
    dispatcher: Any = njit(nogil=True, cache=True, error_model="numpy")(function)
    compile_alone = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        with _first(dispatcher):
            # Asks the disk first: whoever held the lock may have compiled it.
            return compile_alone(signature)

    dispatcher.compile = compile_once
    return dispatcher


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
                os.close(lock)  # which also unlocks


def _opened(dispatcher: Any) -> int | None:
    """The lock, held; None where there is no cache or no lock to be had."""
    folder = getattr(dispatcher._cache, "cache_path", None)  # noqa: SLF001
    if folder is None:
        return None
    # Without locks (Windows, some network disks) everyone compiles for himself.
    with suppress(ImportError, OSError):
        from fcntl import LOCK_EX, flock

        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as numba will
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = os.open(os.path.join(folder, _LOCK), flags, 0o600)  # noqa: PTH118
        try:
            flock(lock, LOCK_EX)
        except OSError:
            os.close(lock)
            raise
        return lock
    return None
