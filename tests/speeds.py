"""A machine with round numbers, for worked examples of forecasts."""

from thinwire.cost import Rounds
from thinwire.tools.plan.candidates import with_teams
from thinwire.tools.plan.machine import Machine, Sharing, key, overhead_key
from thinwire.tools.plan.processes import FEWEST, MOST, ProcessOverhead
from thinwire.tools.plan.processor import Speed

# 100 us a round and half a nanosecond a byte; the library's are shorter, and add up.
ROUNDS = Rounds(
    exchange=((0, 100e-6), (1_000_000, 600e-6)),
    direct=((0, 50e-6), (1_000_000, 550e-6)),
    all_reduce=((0, 50e-6), (1_000_000, 1050e-6)),
)
# A millisecond, a nanosecond an element, 100 one that is kept, 10 a byte, 100 us a
# list; the busiest twice.
SPARSE = Speed((1e-3, 1e-9, 100e-9, 10e-9, 100e-6), (2e-3, 2e-9, 200e-9, 20e-9, 200e-6))
DENSE = Speed((0.0, 0.5e-9, 0.0, 0.0, 0.0), (0.0, 0.5e-9, 0.0, 0.0, 0.0))


# In processes, computing takes half as long again and 2 ms.
OVERHEAD = ProcessOverhead(2e-3, 1.5)


def machine_for(choices) -> Machine:
    """Knows these choices, whatever neighbours and teams they have."""
    made = Machine({str(count): ROUNDS for count in range(FEWEST, MOST + 1)})
    for each in (each for choice in choices for each in with_teams(choice, 2)):
        for others in range(8):
            speed = DENSE if each.method == "dense" else SPARSE
            made.speeds[key(each, others)] = speed
            for count in range(FEWEST, MOST + 1):
                made.overheads[overhead_key(each, Sharing(others, count))] = OVERHEAD
    return made
