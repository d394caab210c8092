"""Groups: bytes between ranks, real or simulated.

`thinwire.groups.torch` has the group over torch.distributed.

Threads. One thread at a time calls a group, in the same order on every rank. In
training this is the communication thread or, while that has nothing to do, the thread
of the backward pass or of the training loop. `rank`, `size`, `Counted.traffic` and
`Counted.reset` are for any thread. Threads of the backend touch nothing but the buffers
of transfers that are under way, and call the `done` of `TorchGroup.begin_all_reduce_`,
which must not call the group. Simulated ranks are threads that run in turns: only one
of them is awake.
"""

from thinwire.groups.counted import Counted, Traffic
from thinwire.groups.group import Group, Op, WrappedGroup
from thinwire.groups.simulation.group import SimulatedGroup, simulate

__all__ = [
    "Counted",
    "Group",
    "Op",
    "SimulatedGroup",
    "Traffic",
    "WrappedGroup",
    "simulate",
]
