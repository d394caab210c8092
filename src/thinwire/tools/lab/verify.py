"""Verify the shaping of a lab by real TCP between its hosts.

What else runs on the machine can only slow a message down. So of several messages the
fastest is taken: it shows whether the link can be as fast as its rate, and whether it
ever is faster.
"""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from thinwire.errors import ConfigError, LabError
from thinwire.tools.lab import commands, probe
from thinwire.tools.lab.lab import Lab
from thinwire.tools.lab.record import Record
from thinwire.tools.lab.shaping import Shape, shapes

MESSAGES = (20_000, 100_000, 1_000_000)
RATE_TOLERANCE = 0.1
FASTEST = 0.9  # of the nominal time

_REPEATS = {20_000: 20, 100_000: 20, 1_000_000: 5}
_LONG_REPEATS = 3
_LONG_SECONDS = 0.5
_PAUSE_SECONDS = 0.02  # until the link is idle and its bucket full: the worst case
_PORT = 30_000

_Process = subprocess.Popen[str]


@dataclass(frozen=True, slots=True)
class Timed:
    """A message between two hosts: its least expected time, and its measured time."""

    nbytes: int
    nominal: float
    measured: float

    @property
    def share(self) -> float:
        """Of the nominal time."""
        return self.measured / self.nominal


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a link: single messages after a pause, and long transfers."""

    shape: Shape
    messages: tuple[Timed, ...]
    alone: Timed  # while no other host sends
    together: Timed  # while every host sends to the next: the slowest

    @property
    def unshaped(self) -> tuple[Timed, ...]:
        """Messages that were faster than the link."""
        return tuple(each for each in self.messages if each.share < FASTEST)

    @property
    def holds(self) -> bool:
        """Whether no message is faster than its link, and no long one slower."""
        sustained = holds_rate(self.alone) and holds_rate(self.together)
        return sustained and not self.unshaped

    def within_burst(self, message: Timed) -> bool:
        """Whether the bucket lets it pass at once: its time is then the system's."""
        return message.nbytes <= self.shape.burst


def holds_rate(sustained: Timed) -> bool:
    """Whether a long transfer's rate is the nominal one, within the tolerance."""
    return abs(1 / sustained.share - 1) <= RATE_TOLERANCE


def verify(rate: str, hosts: int = 2) -> Measured:
    """Measure links of this rate, in a lab made for it."""
    with Lab(hosts, rate) as lab:
        return measure(lab.record)


def measure(record: Record, source: int = 0, target: int = 1) -> Measured:
    """Measure the way from one host of a lab to another, then all hosts at once."""
    if source == target or max(source, target) >= record.hosts:
        raise ConfigError(
            f"a message from host {source} to host {target} of {record.hosts}: "
            "give two hosts that there are"
        )
    links = shapes(record.rates)
    link = _slowest([links[source], links[target]])
    with _senders(record, [(source, target)]) as senders:
        messages = tuple(_fastest(senders, link, nbytes) for nbytes in MESSAGES)
        alone = _fastest(senders, link, _long(link))
    ring = [(host, (host + 1) % record.hosts) for host in range(record.hosts)]
    with _senders(record, ring) as senders:
        together = _fastest(senders, _slowest(links), _long(_slowest(links)))
    return Measured(link, messages, alone, together)


def _slowest(links: Sequence[Shape]) -> Shape:
    return min(links, key=lambda link: link.rate)


def _long(shape: Shape) -> int:
    return round(_LONG_SECONDS * shape.rate / 8)


def _fastest(senders: Sequence[_Process], shape: Shape, nbytes: int) -> Timed:
    """The fastest of several times, each that of the slowest sender."""
    times = []
    for _ in range(_REPEATS.get(nbytes, _LONG_REPEATS)):
        time.sleep(_PAUSE_SECONDS)
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.write(f"{nbytes}\n")
            sender.stdin.flush()
        times.append(max(float(_line(sender)) for sender in senders))
    return Timed(nbytes, shape.link.transfer(nbytes), min(times))


@contextmanager
def _senders(
    record: Record, ways: Sequence[tuple[int, int]]
) -> Iterator[list[_Process]]:
    """A sender for each way, whose receiver waits; no host receives twice."""
    with ExitStack() as stack:

        def start(host: int, *arguments: str) -> _Process:
            process = stack.enter_context(_start(record, host, *arguments))
            stack.callback(process.kill)
            return process

        for _, target in ways:
            _line(start(target, "receive", str(_PORT)))
        senders = [
            start(source, "send", record.address(target), str(_PORT))
            for source, target in ways
        ]
        for sender in senders:
            _line(sender)
        yield senders


def _start(record: Record, host: int, *arguments: str) -> _Process:
    enter = commands.inside(record.pids[host])
    script = [*commands.SCRIPT, probe.__file__, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen([*enter, *script], stdin=pipe, stdout=pipe, text=True)


def _line(process: _Process) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise LabError(
            "the probe ended early; its complaint is above. "
            "What this machine lacks: thinwire lab doctor"
        )
    return line
