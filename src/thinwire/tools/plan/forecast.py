"""The time of a step with each method, from its cost, this machine and a link.

A reduction is computing, moving bytes and waiting. Computing is the processor time of
its own thread, multiplied where ranks share cores, with the overhead of real processes.
Moving bytes takes as long as the wire or the processor's share in it, whichever is
longer: they go on at once. Every round waits for the link's latency and for what the
software needs to pass a message on. Where ranks have timed rounds on the link, both are
read off those.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite

from thinwire.cost import Cost, Link, Rounds
from thinwire.errors import ConfigError
from thinwire.tools.plan import processes
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.machine import Machine, Sharing
from thinwire.tools.plan.processor import features
from thinwire.tools.plan.transport import transport_time

BUCKET_NBYTES = 25 << 20
"""DDP's default."""

PAYLOAD = 1448 / 1514
"""Of a link whose rate is known by name: TCP/IP and Ethernet headers are the rest."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A model, its workers and their links; `backward` in seconds.

    `rounds` are the link's, where ranks have measured them; else they follow from its
    latency, its bandwidth and this machine. `ranks_per_machine` share `cores` cores,
    and `workers_per_host` a link.
    """

    parameters: int
    workers: int
    link: Link
    backward: float = 0.0
    rounds: Rounds | None = None
    ranks_per_machine: int = 1
    cores: int = 1
    bucket: int = BUCKET_NBYTES
    workers_per_host: int = 1

    def __post_init__(self) -> None:
        whole = ("parameters", "workers", "ranks_per_machine", "cores", "bucket")
        for name in (*whole, "workers_per_host"):
            if getattr(self, name) < 1:
                option = name.replace("ranks", "workers").replace("_", "-")
                raise ConfigError(f"{option} is {getattr(self, name)}: give 1 or more")
        if self.workers % self.workers_per_host:
            raise ConfigError(
                f"workers-per-host is {self.workers_per_host}, which does not divide "
                f"{self.workers} workers: every host must have equally many"
            )
        if self.workers_per_host > 1 and self.rounds is not None:
            raise ConfigError(
                f"workers-per-host is {self.workers_per_host} and the link is a "
                "measured one, of which it is not known what hosts share: give a rate"
            )
        if not 0 <= self.backward < inf:
            raise ConfigError(f"backward is {self.backward}: give seconds, 0 or more")

    @property
    def share(self) -> float:
        """Ranks per core, at least 1."""
        return max(1.0, self.ranks_per_machine / self.cores)

    @property
    def others(self) -> int:
        """The number of cores besides a rank's own that other ranks keep busy."""
        return min(self.ranks_per_machine, self.cores) - 1

    @property
    def sharing(self) -> Sharing:
        """How this machine is shared while it is measured."""
        return Sharing(self.others, processes.count(self.share, self.others))

    @property
    def buckets(self) -> int:
        """The number of reductions in a step."""
        return -(-4 * self.parameters // self.bucket)


@dataclass(frozen=True, slots=True)
class Reduction:
    """The seconds of one reduction, by part."""

    compute: float
    wire: float
    transport: float
    waits: float

    @property
    def seconds(self) -> float:
        """From its start to its end on the slowest rank."""
        return self.compute + max(self.wire, self.transport) + self.waits


@dataclass(frozen=True)
class Forecast:
    """The seconds of a step from the start of its backward pass."""

    choice: Choice
    scenario: Scenario
    cost: Cost  # of one bucket
    reduction: Reduction  # of one bucket

    @property
    def nbytes(self) -> int:
        """The bytes of the busiest rank in a step."""
        return self.scenario.buckets * self.cost.nbytes

    @property
    def communication(self) -> float:
        """All reductions of a step, one after the other."""
        return self.scenario.buckets * self.reduction.seconds

    @cached_property
    def step(self) -> float:
        """Until the last gradient is averaged.

        Gradients come at a steady pace, and a bucket is reduced when it is full and the
        one before it is done. So either the reductions keep up, and the last one is
        left when backward ends, or they are never idle after the first bucket.
        """
        count, backward = self.scenario.buckets, self.scenario.backward
        keeps_up = backward + self.reduction.seconds
        falls_behind = backward / count + self.communication
        return max(keeps_up, falls_behind)

    @property
    def exposed(self) -> float:
        """The seconds that the reductions add to the backward pass."""
        return self.step - self.scenario.backward


def forecast(choice: Choice, scenario: Scenario, machine: Machine) -> Forecast:
    """The forecast of a step with a choice."""
    choice.check(scenario.workers)
    size = -(-scenario.parameters // scenario.buckets)
    cost = choice.cost(size, scenario.workers)
    reduction = reduced(choice, size, scenario, machine)
    return Forecast(choice, scenario, cost, reduction)


def reduced(
    choice: Choice, size: int, scenario: Scenario, machine: Machine
) -> Reduction:
    """One reduction of a vector of `size`, backward passes aside."""
    ranks, link, sharing = scenario.workers, scenario.link, scenario.sharing
    simulated = machine.speed(choice, sharing.others).seconds(
        features(choice, size, ranks), scenario.share
    )
    if ranks == 1:
        return Reduction(simulated, 0.0, 0.0, 0.0)
    compute = machine.overhead(choice, sharing).seconds(simulated)
    # More ranks than processes could stand for are slower still.
    crowd = max(1.0, scenario.share / sharing.share)
    loopback = machine.loopback(sharing)
    software = transport_time(choice, size, ranks, loopback, share=sharing.share)
    detour = choice.detour(size, ranks, link)
    if scenario.rounds is not None:  # the processor's part was measured with the wire's
        over = transport_time(
            choice, size, ranks, scenario.rounds, share=scenario.share
        )
        return Reduction(compute, over.nbytes, 0.0, over.waits + detour)
    own, guard = choice.own_cost(size, ranks), choice.guard_cost(size, ranks)
    plain = Link(0.0, link.bandwidth, link.burst)
    return Reduction(
        compute,
        # The guard's few bytes would not use up what a burst spares.
        plain.seconds(own, idle=compute) + link.transfer(guard.nbytes),
        crowd * software.nbytes,
        (own.rounds + guard.rounds) * link.latency + crowd * software.waits + detour,
    )


def wire_seconds(choice: Choice, size: int, ranks: int, link: Link) -> float:
    """The seconds of the wire alone, as on the clock of a simulated group."""
    card = choice.cost(size, ranks)
    return link.seconds(card) + choice.detour(size, ranks, link)


def forecasts(
    choices: Iterable[Choice], scenario: Scenario, machine: Machine
) -> list[Forecast]:
    """All of them, the fastest step first."""
    found = [forecast(choice, scenario, machine) for choice in choices]
    return sorted(found, key=lambda each: each.step)


def named(link: Link) -> Link:
    """A link as its payload sees it, of which the rate is known by name."""
    if not isfinite(link.bandwidth):
        return link
    return Link(link.latency, PAYLOAD * link.bandwidth, round(PAYLOAD * link.burst))
