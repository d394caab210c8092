"""What thinwire.AdamW refuses: options, the state of another model, and state dicts."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.optim.deliveries import DeliveryState
from thinwire.optim.moments import MOMENTS, RECORDS
from thinwire.optim.rules import LONGEST_DECAY


def check_group(group: Mapping[str, Any], needed: Sequence[str] = ()) -> None:
    """Refuse variants that do not exist here, and a group without what is `needed`."""
    for name in ("amsgrad", "capturable", "differentiable"):
        if group.get(name):
            raise ConfigError(
                f"{name} is {group[name]!r}: thinwire.AdamW has no such variant. Leave "
                "it out, or use torch.optim.AdamW"
            )
    for name in needed:
        if name not in group:
            raise ConfigError(
                f"a state dict of another optimizer: a group has no {name!r}. Load one "
                "of thinwire.AdamW or torch.optim.AdamW"
            )


def check_source(source: DeliveryState, groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state that cannot say what was delivered of these parameters."""
    known = getattr(source, "parameters", None)
    if not isinstance(known, Mapping) or not hasattr(source, "deliveries"):
        raise ConfigError(
            f"state is a {type(source).__name__}: give what thinwire.attach returned"
        )
    ids = set(map(id, known.values()))
    if not any(id(param) in ids for group in groups for param in group["params"]):
        raise ConfigError(
            "state knows none of these parameters: give what thinwire.attach returned "
            "for their model, not for another one or for a copy"
        )


def check_saved(saved: Mapping[str, Any], param: Tensor, number: object) -> None:
    """Refuse a saved state that is not one of this parameter."""
    for name in ("step", *MOMENTS):
        if name not in saved:
            raise ConfigError(
                f"the state of parameter {number} has no {name!r}: load a state dict "
                "of thinwire.AdamW or torch.optim.AdamW"
            )
    for name in RECORDS:
        found = saved.get(name, param)
        if not isinstance(found, Tensor) or found.shape != param.shape:
            raise ConfigError(
                f"a state dict of another model: {name} of parameter {number} has "
                f"shape {list(getattr(found, 'shape', ()))}, here it is "
                f"{list(param.shape)}"
            )
    waiting, step = saved.get("delivered_at"), float(saved["step"])
    # Also False for a NaN: kernels find their factors by the steps waited.
    if waiting is not None and not bool(((waiting >= 0) & (waiting <= step)).all()):
        raise ConfigError(
            f"a damaged state dict: elements of parameter {number} were delivered "
            f"after its step {step:.0f}, or never"
        )
    pending = saved.get("pending_decay") or ()
    if len(pending) > LONGEST_DECAY:
        raise ConfigError(
            f"a damaged state dict: {len(pending)} steps of decay are pending for "
            f"parameter {number}, of at most {LONGEST_DECAY}"
        )
