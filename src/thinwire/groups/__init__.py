"""Groups: bytes between ranks, real or simulated.

`thinwire.groups.torch` has the group over torch.distributed.
"""

from thinwire.groups.counted import Counted, Traffic
from thinwire.groups.faulty import Fault, Faulty
from thinwire.groups.group import Group, Op
from thinwire.groups.simulation.group import SimulatedGroup, simulate

__all__ = [
    "Counted",
    "Fault",
    "Faulty",
    "Group",
    "Op",
    "SimulatedGroup",
    "Traffic",
    "simulate",
]
