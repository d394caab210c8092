"""The Triton kernels, interpreted, in place of the CPU's.

Interpreted kernels run on tensors in the processor's memory, slowly and one at a time.
"""

from threading import RLock
from typing import Any

import pytest
import torch

from thinwire.kernels import dispatch
from thinwire.kernels.dispatch import implementation


class OneAtATime:
    """Triton's kernels by name, run by one thread at a time, as the interpreter needs.

    With names, those kernels only, and the reference for the others.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._lock = RLock()

    def __getitem__(self, name: str) -> Any:
        other = bool(self._names) and name not in self._names
        function = implementation(name, "reference" if other else "cuda")

        def run(*args: Any, **options: Any) -> Any:
            with self._lock:
                result = function(*args, **options)
            return OneMethodAtATime(result, self._lock) if objects else result

        objects = name == "new_candidates"
        return run


class OneMethodAtATime:
    """An object whose methods are run by one thread at a time."""

    def __init__(self, inner: Any, lock: Any) -> None:
        self._inner, self._lock = inner, lock

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def run(*args: Any, **options: Any) -> Any:
            with self._lock:
                return method(*args, **options)

        return run


def use_triton(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Lead tensors on the processor to the kernels for CUDA, blocks of any length.

    With names, those kernels only, and the reference's instead of the others.
    """
    pytest.importorskip("triton", reason="needs Triton")
    if torch.cuda.is_available():
        pytest.skip("kernels are not interpreted where there is a device")
    from thinwire.kernels.cuda import buffer

    monkeypatch.setattr(buffer, "SHORT", 0)
    monkeypatch.setattr(dispatch, "_cpu", OneAtATime(names))
