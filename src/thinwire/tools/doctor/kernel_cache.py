"""Where compiled kernels are kept: numba's cache, which ranks must be able to write."""

import os
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class KernelCache:
    """The directory, or why there is none; `refused` is one that was asked for."""

    folder: str = ""
    why: str = ""
    refused: str = ""


def found() -> KernelCache:
    """Ask numba where it keeps a kernel, and write a file there."""
    try:
        folder = Path(_folder_of_a_kernel())
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (ImportError, OSError, RuntimeError) as error:  # numba's: no such place
        return KernelCache(why=str(error))
    wanted = os.environ.get(VARIABLE, "")
    # Numba says nothing if it cannot write there, and takes another place.
    ignored = wanted and not folder.is_relative_to(Path(wanted).absolute())
    return KernelCache(str(folder), refused=wanted if ignored else "")


def _folder_of_a_kernel() -> str:
    kernels = vars(import_module("thinwire.kernels.cpu.lists")).values()
    folder: str = next(
        kernel._cache.cache_path  # noqa: SLF001
        for kernel in kernels
        if hasattr(kernel, "_cache")
    )
    return folder
