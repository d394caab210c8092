"""A machine of round numbers, for forecasts that can be worked out by hand."""

from thinwire.plan.candidates import with_teams
from thinwire.plan.machine import Machine, key
from thinwire.plan.processor import Speed
from thinwire.plan.transport import Moving, Transport

TRANSPORT = Transport(
    exchange=Moving(latency=100e-6, round=200e-6, byte=0.5e-9),
    all_reduce=Moving(latency=50e-6, round=100e-6, byte=1e-9),
)
# A millisecond, a nanosecond an element, 100 one that is kept, 10 a byte, 100 us a
# list; the busiest twice.
SPARSE = Speed((1e-3, 1e-9, 100e-9, 10e-9, 100e-6), (2e-3, 2e-9, 200e-9, 20e-9, 200e-6))
DENSE = Speed((0.0, 0.5e-9, 0.0, 0.0, 0.0), (0.0, 0.5e-9, 0.0, 0.0, 0.0))


def machine_for(choices) -> Machine:
    """Knows these choices, whatever neighbours and teams they have."""
    speeds = {
        key(each, others): DENSE if choice.method == "dense" else SPARSE
        for choice in choices
        for each in with_teams(choice, 2)
        for others in range(8)
    }
    return Machine(TRANSPORT, speeds)
