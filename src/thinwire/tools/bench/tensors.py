"""A user's file as one vector: a tensor, or the tensors of a dict, joined."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from thinwire.errors import ConfigError

_REMEDY = "write one with torch.save(tensor, path), or a dict of tensors"


def load(path: Path) -> Tensor:
    """The elements of a file that `torch.save` wrote, as float32.

    Tensors of a dict come in its order; those of whole numbers, such as counters, are
    passed over. Nothing but tensors is read, so that a file need not be trusted.
    """
    if not path.is_file():
        raise ConfigError(f"cannot read {path}: there is no such file")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file can be broken in any way
        raise ConfigError(
            f"cannot read {path}: it is not a file of tensors; {_REMEDY}"
        ) from error
    floats = [part for part in _tensors(saved, path) if part.is_floating_point()]
    if not floats:
        raise ConfigError(f"no floating-point numbers in {path}; {_REMEDY}")
    vector = torch.cat([part.detach().float().reshape(-1) for part in floats])
    _check(vector, path)
    return vector


def _tensors(saved: object, path: Path) -> list[Tensor]:
    named = saved if isinstance(saved, Mapping) else {"": saved}
    tensors = []
    for name, part in named.items():
        if not isinstance(part, Tensor) or part.layout != torch.strided:
            kind = part.layout if isinstance(part, Tensor) else type(part).__name__
            place = f"{name!r} in {path}" if isinstance(saved, Mapping) else str(path)
            raise ConfigError(f"{place} is not a dense tensor ({kind}); {_REMEDY}")
        tensors.append(part)
    return tensors


def _check(vector: Tensor, path: Path) -> None:
    if not vector.numel():
        raise ConfigError(f"no elements in {path}; {_REMEDY}")
    wrong = vector.numel() - int(vector.isfinite().sum())
    if wrong:
        raise ConfigError(
            f"{wrong} of the {vector.numel()} elements of {path} are not finite: NaN "
            "or infinity, which no list of the largest can do without"
        )
