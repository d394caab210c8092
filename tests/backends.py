"""The primitives of one backend: `cpu.select`, `cuda.select`, `reference.select`."""

from collections.abc import Callable
from typing import Any

from thinwire import kernels
from thinwire.kernels.dispatch import Backend, by_reference, implementation


class Primitives:
    """Each attribute is the function that this backend runs for a primitive."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or not hasattr(kernels, name):
            raise AttributeError(name)
        if self._backend != "reference":
            return implementation(name, self._backend)

        def run(*args: Any, **options: Any) -> Any:
            with by_reference():
                return getattr(kernels, name)(*args, **options)

        return run


cpu, cuda, reference = Primitives("cpu"), Primitives("cuda"), Primitives("reference")
