"""Sparse gradients for data-parallel PyTorch on slow networks.

model = DDP(model)
state = thinwire.attach(model, "topk", density=0.01)
"""

from thinwire.channel import Channel
from thinwire.codecs import Float32, Int32, Split
from thinwire.collectives import BF16, AllGather, BySize, Dense, Warmup
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
from thinwire.feedback import Forget, Residual
from thinwire.groups import simulate
from thinwire.hooks.attach import attach
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector
from thinwire.version import __version__

__all__ = [
    "BF16",
    "AgreementError",
    "AllGather",
    "BySize",
    "Channel",
    "ConfigError",
    "Cost",
    "Dense",
    "Float32",
    "Forget",
    "GroupError",
    "Int32",
    "Layout",
    "Link",
    "PeerError",
    "Pipeline",
    "ReplicaError",
    "Residual",
    "SparseVector",
    "Split",
    "ThinwireError",
    "TornError",
    "Warmup",
    "WireError",
    "__version__",
    "attach",
    "simulate",
]
