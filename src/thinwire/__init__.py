"""Sparse gradients for data-parallel PyTorch on slow networks.

    model = DDP(model)
    state = thinwire.attach(model, "spardl", density=0.01)

Collectives, codecs and the other parts are in the packages of their names, for example
`thinwire.codecs`. Names and packages are loaded when first used: importing thinwire
takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from thinwire.version import __version__

if TYPE_CHECKING:
    from thinwire.channel import Channel
    from thinwire.cost import Cost, Link
    from thinwire.errors import (
        AgreementError,
        ConfigError,
        GroupError,
        InconsistentStateError,
        PeerError,
        ReplicaError,
        ThinwireError,
        WireError,
    )
    from thinwire.feedback import Momentum
    from thinwire.groups import simulate
    from thinwire.hooks.attach import attach
    from thinwire.hooks.state import State
    from thinwire.layout import Layout
    from thinwire.optim import AdamW
    from thinwire.reducers import Pipeline
    from thinwire.sparse import SparseVector

__all__ = [
    "AdamW",
    "AgreementError",
    "Channel",
    "ConfigError",
    "Cost",
    "GroupError",
    "InconsistentStateError",
    "Layout",
    "Link",
    "Momentum",
    "PeerError",
    "Pipeline",
    "ReplicaError",
    "SparseVector",
    "State",
    "ThinwireError",
    "WireError",
    "__version__",
    "attach",
    "simulate",
]

# The module that defines each name.
_HOMES = {
    "AdamW": "optim",
    "AgreementError": "errors",
    "Channel": "channel",
    "ConfigError": "errors",
    "Cost": "cost",
    "GroupError": "errors",
    "InconsistentStateError": "errors",
    "Layout": "layout",
    "Link": "cost",
    "Momentum": "feedback",
    "PeerError": "errors",
    "Pipeline": "reducers",
    "ReplicaError": "errors",
    "SparseVector": "sparse",
    "State": "hooks.state",
    "ThinwireError": "errors",
    "WireError": "errors",
    "attach": "hooks.attach",
    "simulate": "groups",
}
# Packages and modules that are attributes without an import of their own.
_PACKAGES = (
    "catalog",
    "choosers",
    "codecs",
    "collectives",
    "errors",
    "feedback",
    "groups",
    "hooks",
    "optim",
    "reducers",
)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(import_module(f"thinwire.{_HOMES[name]}"), name)
    elif name in _PACKAGES:
        value = import_module(f"thinwire.{name}")
    else:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
