"""Sparse gradients for data-parallel PyTorch on slow networks.

    model = DDP(model)
    state = thinwire.attach(model, "spardl", density=0.01)

Public names are loaded when first used: importing thinwire takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from thinwire.version import __version__

if TYPE_CHECKING:
    from thinwire.channel import Channel
    from thinwire.codecs import (
        QSGD,
        AtLeast,
        BFloat16,
        Bitmap,
        Bloom,
        Deflate,
        DeltaVarint,
        EliasFano,
        FitDExp,
        FitPoly,
        Float16,
        Float32,
        Huffman,
        Int8,
        Int32,
        LogQuant,
        Rice,
        RunLength,
        Split,
        Zstd,
    )
    from thinwire.collectives import (
        BF16,
        S2,
        AllGather,
        Auto,
        BySize,
        Cheapest,
        Dense,
        GsSGD,
        GTopK,
        SparDL,
        Union,
        Warmup,
    )
    from thinwire.cost import Cost, Link
    from thinwire.errors import (
        AgreementError,
        ConfigError,
        GroupError,
        PeerError,
        ReplicaError,
        ThinwireError,
        TornError,
        WireError,
    )
    from thinwire.feedback import Forget, Momentum, Residual
    from thinwire.groups import simulate
    from thinwire.hooks.attach import attach
    from thinwire.layout import Layout
    from thinwire.reducers import Pipeline
    from thinwire.sparse import SparseVector

__all__ = [
    "BF16",
    "QSGD",
    "S2",
    "AgreementError",
    "AllGather",
    "AtLeast",
    "Auto",
    "BFloat16",
    "Bitmap",
    "Bloom",
    "BySize",
    "Channel",
    "Cheapest",
    "ConfigError",
    "Cost",
    "Deflate",
    "DeltaVarint",
    "Dense",
    "EliasFano",
    "FitDExp",
    "FitPoly",
    "Float16",
    "Float32",
    "Forget",
    "GTopK",
    "GroupError",
    "GsSGD",
    "Huffman",
    "Int8",
    "Int32",
    "Layout",
    "Link",
    "LogQuant",
    "Momentum",
    "PeerError",
    "Pipeline",
    "ReplicaError",
    "Residual",
    "Rice",
    "RunLength",
    "SparDL",
    "SparseVector",
    "Split",
    "ThinwireError",
    "TornError",
    "Union",
    "Warmup",
    "WireError",
    "Zstd",
    "__version__",
    "attach",
    "simulate",
]

# Where public names live, by module; packages are themselves reachable by name.
_HOMES = {
    "catalog": (),
    "channel": ("Channel",),
    "codecs": (
        "QSGD",
        "AtLeast",
        "BFloat16",
        "Bitmap",
        "Bloom",
        "Deflate",
        "DeltaVarint",
        "EliasFano",
        "FitDExp",
        "FitPoly",
        "Float16",
        "Float32",
        "Huffman",
        "Int8",
        "Int32",
        "LogQuant",
        "Rice",
        "RunLength",
        "Split",
        "Zstd",
    ),
    "collectives": (
        "BF16",
        "S2",
        "AllGather",
        "Auto",
        "BySize",
        "Cheapest",
        "Dense",
        "GTopK",
        "GsSGD",
        "SparDL",
        "Union",
        "Warmup",
    ),
    "cost": ("Cost", "Link"),
    "errors": (
        "AgreementError",
        "ConfigError",
        "GroupError",
        "PeerError",
        "ReplicaError",
        "ThinwireError",
        "TornError",
        "WireError",
    ),
    "feedback": ("Forget", "Momentum", "Residual"),
    "groups": ("simulate",),
    "hooks": (),
    "hooks.attach": ("attach",),
    "layout": ("Layout",),
    "reducers": ("Pipeline",),
    "sparse": ("SparseVector",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        value: object = getattr(import_module(f"thinwire.{_HOME_OF[name]}"), name)
    elif name in _HOMES:
        value = import_module(f"thinwire.{name}")
    else:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
