"""Kernels that numba compiles: once per machine, not once per process.

The ranks of one machine start together and need the same kernels at the same moment.
Whoever comes first compiles under a lock on the cache's directory; the others wait and
load what it wrote, all at once. To compile a first kernel takes 0.3 s more than a
further one, so that who has compiled before goes first.
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

# Seconds to wait for others before compiling beside them.
PATIENCE = 60.0
# Seconds that who has not compiled yet leaves to those who have.
COURTESY = 0.05

_LOCK = "thinwire.lock"
# Nobody calls a kernel from C, and what makes no array need not count references.
# Numba does not promise to know these options for ever: without them it is slower.
_SPARING = {"no_cfunc_wrapper": True, "_nrt": False}


def refcounted(function: Callable[..., Any]) -> Any:
    """Let a kernel or a part count references: it makes arrays, or calls who does."""
    function.__dict__["refcounted"] = True
    return function


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function without the GIL, on its first call, and keep it on disk."""
    dispatcher = _dispatcher(function)
    shelf: Any = _Shelf
    dispatcher._cache = shelf(function)  # noqa: SLF001
    compile_alone = dispatcher.compile

    def compile_once(signature: Any) -> Any:
        with _turn.taken():
            return compile_alone(signature)

    dispatcher.compile = compile_once
    return dispatcher


def part(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call: into them, and not for itself."""
    return _dispatcher(function, no_cpython_wrapper=True)


def _dispatcher(function: Callable[..., Any], **more: bool) -> Any:
    wanted = {**_SPARING, **more}
    if "refcounted" in function.__dict__:
        del wanted["_nrt"]
    known = {o: v for o, v in wanted.items() if hasattr(CPUTargetOptions, o)}
    njit: Any = numba.njit
    return njit(nogil=True, error_model="numpy", **known)(function)


class _Shelf(FunctionCache):
    """Numba's cache, to which a process that finds nothing returns with a lock.

    Numba gets ready for compiling before it looks. Of that, code that is compiled
    already needs the memory manager alone; the rest is 0.3 s of imports.

    Numba compiles a kernel again when its own file has changed. Here a change of any
    file that it may have parts from will do.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        construct: Any = super().__init__
        construct(function)
        # Numba does not promise this name: without it, own files alone are noticed.
        file: Any = self._cache_file
        if hasattr(file, "_source_stamp"):
            file._source_stamp = (file._source_stamp, _stamp())  # noqa: SLF001

    def load_overload(self, signature: Any, context: Any) -> Any:
        rtsys.initialize(context)
        found = self._look(signature, context)
        patience = monotonic() + PATIENCE
        while found is None and _turn.wait(self.cache_path, patience):
            found = self._look(signature, context)
        return found

    def _look(self, signature: Any, context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            load: Any = self._load_overload
            return load(signature, context)


@cache
def _stamp() -> tuple[tuple[str, float, int], ...]:
    """What tells whether one of the package's kernel files has changed."""
    here = Path(__file__)
    files = sorted(here.parent.glob("*.py"))
    stats = [(file.name, file.stat()) for file in files]
    return tuple((name, stat.st_mtime, stat.st_size) for name, stat in stats)


class _Turn:
    """Whose turn it is to compile: one thread's of all processes that share a cache."""

    def __init__(self) -> None:
        self._thread = RLock()
        self._depth = 0
        self._lock: int | None = None
        self._settled = False
        self._experienced = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the lock, if one is asked for, until the outermost kernel is done."""
        with self._thread:
            collecting = gc.isenabled()
            # A tenth of the time went into looking for garbage in what numba keeps.
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
        """Whether a thread compiles right now."""
        return self._depth > 0

    def wait(self, folder: str, patience: float) -> bool:
        """Whether to look again, which ends once the lock is held or not to be had."""
        if self._settled:
            return False
        # Without locks (Windows, some network disks) everyone compiles for himself.
        with suppress(ImportError, OSError):
            if self._lock is None:
                self._lock = _opened(folder)
                if not self._experienced:
                    sleep(COURTESY)
                    return True
            if _locked(self._lock):
                self._settled = self._experienced = True
                return True
            if _unlocked_by_others(self._lock, patience):
                return True
        self._settled = True
        return False

    def _release(self) -> None:
        if self._lock is not None:
            _close(self._lock)
        self._lock = None
        self._settled = False


_turn = _Turn()


def _start_anew() -> None:
    """A child has its parent's turn, but not the thread whose turn it was."""
    global _turn  # noqa: PLW0603 - one per process, as the lock is
    if _turn.compiling:
        gc.enable()
    _turn = _Turn()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def _opened(folder: str) -> int:
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as numba will
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    return os.open(os.path.join(folder, _LOCK), flags, 0o600)  # noqa: PTH118


def _locked(lock: int, *, shared: bool = False) -> bool:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock

    with suppress(BlockingIOError):
        flock(lock, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)
        return True
    return False


def _unlocked_by_others(lock: int, patience: float) -> bool:
    """Wait for whoever compiles. A shared lock is given to all who wait at once."""
    from fcntl import LOCK_UN, flock

    while monotonic() < patience:
        if _locked(lock, shared=True):
            flock(lock, LOCK_UN)
            return True
        sleep(0.01)
    return False


def _close(lock: int) -> None:
    """Unlock first: a child that was forked meanwhile has the file open, too."""
    with suppress(ImportError, OSError):
        from fcntl import LOCK_UN, flock

        flock(lock, LOCK_UN)
    os.close(lock)
