"""Kernels that numba compiles once per machine, not once per process.

The ranks of a machine start together and need the same kernels at the same time. One
process compiles, holding a lock on the cache directory. The others wait and then load
the result. The first compilation in a process takes 0.3 s longer than later ones, so a
process that has compiled before goes first.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import RLock
from time import monotonic, sleep
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.cpu import CPUTargetOptions
from numba.core.runtime.nrt import rtsys

# Seconds to wait for other processes before compiling without the lock.
LONGEST_WAIT = 60.0
# Seconds by which a process that has not compiled yet lets others go first.
HEAD_START = 0.05

_LOCK_FILE = "thinwire.lock"
# No kernel is called from C, and one that makes no array need not count references.
# A release of numba without these options compiles more slowly.
_OPTIONS = {"no_cfunc_wrapper": True, "_nrt": False}


def allocating(function: Callable[..., Any]) -> Any:
    """Mark a kernel or a part that allocates arrays, or calls a part that does."""
    function.__dict__["allocating"] = True
    return function


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call, without the GIL, and cache it on disk."""
    dispatcher = _dispatcher(function)
    cache_of: Any = _LockedCache
    dispatcher._cache = cache_of(function)  # noqa: SLF001
    compile_alone = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        with _lock.held():
            return compile_alone(signature)

    dispatcher.compile = compile_once
    return dispatcher


def part(function: Callable[..., Any]) -> Any:
    """Compile a function into the kernels that call it; Python cannot call it."""
    return _dispatcher(function, no_cpython_wrapper=True)


def _dispatcher(function: Callable[..., Any], **more: bool) -> Any:
    wanted = {**_OPTIONS, **more}
    if "allocating" in function.__dict__:
        del wanted["_nrt"]
    known = {o: v for o, v in wanted.items() if hasattr(CPUTargetOptions, o)}
    njit: Any = numba.njit
    return njit(nogil=True, error_model="numpy", **known)(function)


class _LockedCache(FunctionCache):
    """Numba's cache, read again after waiting for the lock.

    Numba prepares for compiling before it reads the cache, which takes 0.3 s. Loading
    needs only the memory manager, so only that is prepared.

    Numba compiles a kernel again if its file has changed. Here it also does so if a
    file that the kernel may have parts from has changed.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        construct: Any = super().__init__
        construct(function)
        # A private name of numba. Without it only the kernel's file is watched.
        file: Any = self._cache_file
        if hasattr(file, "_source_stamp"):
            file._source_stamp = (file._source_stamp, _stamp())  # noqa: SLF001

    def load_overload(self, signature: Any, context: Any) -> Any:
        rtsys.initialize(context)
        found = self._read(signature, context)
        deadline = monotonic() + LONGEST_WAIT
        while found is None and _lock.wait(self.cache_path, deadline):
            found = self._read(signature, context)
        return found

    def _read(self, signature: Any, context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            load: Any = self._load_overload
            return load(signature, context)


@cache
def _stamp() -> tuple[tuple[str, float, int], ...]:
    """Names, times and sizes of the files that kernels have parts from."""
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *here.parent.glob("reference/*.py")])
    stats = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_mtime, stat.st_size) for name, stat in stats)


class _CompileLock:
    """Lets one thread of all processes that share a cache compile at a time."""

    def __init__(self) -> None:
        self._thread = RLock()
        self._depth = 0
        self._lock: int | None = None
        self._decided = False
        self._has_compiled = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Release the lock that `wait` takes once the outermost kernel is compiled."""
        with self._thread:
            collecting = gc.isenabled()
            # Garbage collection takes a tenth of the time of compiling.
            gc.disable()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if collecting:
                    gc.enable()
                if self._depth == 0:
                    self._release()

    @property
    def compiling(self) -> bool:
        """Whether a thread of this process is compiling."""
        return self._depth > 0

    def wait(self, folder: str, deadline: float) -> bool:
        """Wait for the lock; returns whether to read the cache again.

        Returns False if this process holds the lock, or cannot lock.
        """
        if self._decided:
            return False
        # Without locks (Windows, some network disks) each process compiles for itself.
        with suppress(ImportError, OSError):
            if self._lock is None:
                self._lock = _opened(folder)
                if not self._has_compiled:
                    sleep(HEAD_START)
                    return True
            if _locked(self._lock):
                self._decided = self._has_compiled = True
                return True
            if _unlocked_by_others(self._lock, deadline):
                return True
        self._decided = True
        return False

    def _release(self) -> None:
        if self._lock is not None:
            _close(self._lock)
        self._lock = None
        self._decided = False


_lock = _CompileLock()


def _reset_after_fork() -> None:
    """Replace the lock: the thread that held it does not exist in the child."""
    global _lock  # noqa: PLW0603 - one per process, as the lock is
    if _lock.compiling:
        gc.enable()
    _lock = _CompileLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _opened(folder: str) -> int:
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as numba will
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    return os.open(os.path.join(folder, _LOCK_FILE), flags, 0o600)  # noqa: PTH118


def _locked(lock: int, *, shared: bool = False) -> bool:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock

    with suppress(BlockingIOError):
        flock(lock, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)
        return True
    return False


def _unlocked_by_others(lock: int, deadline: float) -> bool:
    """Wait until the lock is free; a shared lock lets all waiting processes go on."""
    from fcntl import LOCK_UN, flock

    while monotonic() < deadline:
        if _locked(lock, shared=True):
            flock(lock, LOCK_UN)
            return True
        sleep(0.01)
    return False


def _close(lock: int) -> None:
    """Unlock and close: a forked child may still have the file open."""
    with suppress(ImportError, OSError):
        from fcntl import LOCK_UN, flock

        flock(lock, LOCK_UN)
    os.close(lock)
