"""The Triton kernels in place of the processor's, so that stages run on them anywhere.

Interpreted kernels run on tensors in the processor's memory, slowly and one at a time.
"""

from threading import RLock
from types import ModuleType
from typing import Any

import pytest
import torch


class OneAtATime:
    """A module whose functions no two threads are in: the interpreter is not theirs.

    Those that are not in `names` are another module's, if there are names.
    """

    def __init__(self, module: ModuleType, other: ModuleType, names: Any) -> None:
        self._modules = module, other
        self._names = names
        self._lock = RLock()

    def __getattr__(self, name: str) -> Any:
        other = bool(self._names) and name not in self._names
        function = getattr(self._modules[other], name)

        def run(*args: Any, **options: Any) -> Any:
            with self._lock:
                return function(*args, **options)

        return run


def use_triton(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Lead tensors on the processor to the kernels for CUDA, blocks of any length.

    With names, those kernels only, and the reference's instead of the others.
    """
    pytest.importorskip("triton", reason="needs Triton")
    if torch.cuda.is_available():
        pytest.skip("kernels are not interpreted where there is a device")
    from thinwire.kernels import cuda, cuda_room, entry, reference

    monkeypatch.setattr(cuda_room, "SHORT", 0)
    backend = OneAtATime(cuda, reference, names)
    monkeypatch.setattr(entry, "_cpu", lambda: backend)
