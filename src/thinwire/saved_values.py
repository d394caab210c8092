"""Checks of values that were read from a state dict, each by the name of its field."""

import json
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import ConfigError

LARGEST = 2**63 - 1
_LONGEST = 60


def damaged(field: str, value: object, want: str) -> ConfigError:
    """The error of a field that does not have what is wanted."""
    return ConfigError(
        f"a damaged state dict: its {field!r} is {shown(value)}, not {want}. Load an "
        "earlier checkpoint"
    )


def shown(value: object) -> str:
    """A plain value, or its type: whatever was read may be huge, or deeply nested."""
    if isinstance(value, str | bool | float) or value is None:
        text = repr(value[: _LONGEST + 1] if isinstance(value, str) else value)
    elif isinstance(value, int) and abs(value) <= LARGEST:
        text = repr(value)
    else:
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def mapping(value: object, field: str) -> Mapping[str, Any]:
    """A dict whose keys are strings."""
    if not isinstance(value, Mapping):
        raise damaged(field, value, "a dict")
    for key in value:
        if not isinstance(key, str):
            raise damaged(f"key of {field}", key, "a string")
    return value


def integer(value: object, field: str, least: int = 0, most: int = LARGEST) -> int:
    """An integer within limits; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise damaged(field, value, "an integer")
    if not least <= value <= most:
        raise damaged(field, value, f"an integer from {least} to {most}")
    return value


def flag(value: object, field: str) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise damaged(field, value, "True or False")
    return value


def number(
    value: object,
    field: str,
    *,
    least: float = 0.0,
    most: float = inf,
    strict: bool = False,
) -> float:
    """A finite number within limits, above `least` if `strict`; a bool is none.

    A tensor of one element is a number, too: torch's optimizers take rates as such.
    """
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise damaged(field, value, "a number")
    large = isinstance(value, int) and abs(value) > LARGEST
    good = not large and isfinite(value) and least <= value <= most
    if not good or (strict and value == least):
        limits = f"{'above' if strict else 'of at least'} {least:g}"
        upper = "" if most == inf else f" and at most {most:g}"
        raise damaged(field, value, f"a finite number {limits}{upper}")
    return float(value)


def text(value: object, field: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise damaged(field, value, "a string")
    return value


def parsed(value: object, field: str) -> Any:
    """What a string of JSON holds."""
    try:
        return json.loads(text(value, field))
    except (ValueError, RecursionError) as error:
        raise damaged(field, value, "JSON of the expected depth") from error


def counts(value: object, field: str) -> dict[str, int]:
    """What a collective remembers, as integers by name."""
    found = {}
    for key, count in mapping(value, field).items():
        # The step of a controller has a sign; `peak` has the bits of a float32.
        most = 2**31 - 1 if key.endswith("peak") else LARGEST
        least = -LARGEST if "step@" in key else 0
        found[key] = integer(count, field, least, most)
    return found


def tensor(
    value: object,
    field: str,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype] = (torch.float32,),
) -> Tensor:
    """A dense tensor of this shape and one of these dtypes, all of it finite."""
    if not isinstance(value, Tensor):
        raise damaged(field, value, "a tensor")
    if value.dtype not in dtypes:
        raise damaged(field, str(value.dtype), " or ".join(map(str, dtypes)))
    if value.layout != torch.strided or value.is_meta:
        raise damaged(field, str(value.layout), "a dense tensor with values")
    if tuple(value.shape) != tuple(shape):
        raise ConfigError(
            f"a state dict of another model: its {field!r} has shape "
            f"{tuple(value.shape)}, here it is {tuple(shape)}"
        )
    if not bool(value.isfinite().all()):
        bad = int(value.numel() - value.isfinite().sum())
        raise ConfigError(
            f"a damaged state dict: its {field!r} has {bad} elements that are NaN or "
            "infinite. Load an earlier checkpoint"
        )
    return value
