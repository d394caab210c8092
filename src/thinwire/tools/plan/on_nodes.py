"""Forecasts for hosts with several workers each: flat, and with the option `nodes`.

The workers of a host share its link. Flat, what a worker sends to others on its host
does not cross it; of the library's ring, what one worker sends does. On nodes every
share crosses it once, and inside a host bytes are copied through memory.
"""

from dataclasses import replace
from functools import lru_cache
from time import perf_counter

import torch

from thinwire.cost import Link
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.forecast import Forecast, Scenario, reduced
from thinwire.tools.plan.machine import Machine

# To write what a peer reads, to set it to zero, and to add to the gradient what is not
# the own share: each takes about as long as a copy of the bytes that are sent inside.
_COPIES = 3
_SAMPLE_NBYTES = 1 << 25


def crossing(choice: Choice, scenario: Scenario) -> Link:
    """The link as one worker of a host has it, if nodes are not told apart."""
    link, workers, local = scenario.link, scenario.workers, scenario.workers_per_host
    if local in {1, workers} or choice.method == "dense":
        return link
    remote = local * (workers - local) / (workers - 1)
    return replace(link, bandwidth=link.bandwidth / remote)


def forecast_on_nodes(choice: Choice, scenario: Scenario, machine: Machine) -> Forecast:
    """The forecast of a step with a choice between hosts; bytes are those between."""
    local = scenario.workers_per_host
    hosts = scenario.workers // local
    choice.check(hosts)
    link = replace(scenario.link, bandwidth=scenario.link.bandwidth / local)
    between = replace(scenario, workers=hosts, workers_per_host=1, link=link)
    size = -(-scenario.parameters // scenario.buckets)
    share = -(-size // local)
    found = reduced(choice, share, between, machine)
    inside = _COPIES * _seconds_per_byte() * 4 * (size - share) * scenario.share
    return Forecast(
        choice.with_options(nodes=local),
        scenario,
        choice.cost(share, hosts),
        replace(found, compute=found.compute + inside),
    )


@lru_cache(maxsize=1)
def _seconds_per_byte() -> float:
    """The time that this machine takes to copy a byte."""
    source = torch.ones(_SAMPLE_NBYTES, dtype=torch.uint8)
    target, times = torch.zeros_like(source), []
    for _ in range(5):
        start = perf_counter()
        target.copy_(source)
        times.append(perf_counter() - start)
    return min(times) / _SAMPLE_NBYTES
