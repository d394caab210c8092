"""What thinwire.AdamW refuses: options, and the state of another model."""

from collections.abc import Mapping, Sequence
from typing import Any

from thinwire.errors import ConfigError
from thinwire.optim.deliveries import DeliveryState


def check_group(group: Mapping[str, Any]) -> None:
    """Refuse variants that do not exist here."""
    for name in ("amsgrad", "capturable", "differentiable"):
        if group.get(name):
            raise ConfigError(
                f"{name} is {group[name]!r}: thinwire.AdamW has no such variant. Leave "
                "it out, or use torch.optim.AdamW"
            )


def check_source(source: DeliveryState, groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state that cannot say what was delivered of these parameters."""
    known = getattr(source, "parameters", None)
    if not isinstance(known, Mapping) or not hasattr(source, "deliveries"):
        raise ConfigError(
            f"state is a {type(source).__name__}: give what thinwire.attach returned"
        )
    params = {id(param) for group in groups for param in group["params"]}
    # There are none in an empty shard of ZeroRedundancyOptimizer.
    if params and params.isdisjoint(map(id, known.values())):
        raise ConfigError(
            "state knows none of these parameters: give what thinwire.attach returned "
            "for their model, not for another one or for a copy"
        )
