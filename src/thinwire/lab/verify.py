"""Does the shaping hold what it promises? Real TCP between two hosts of a lab.

What else runs on the machine can only slow a message down. So of several messages the
fastest is taken: it shows whether the link can be as fast as its rate, and whether it
ever is faster.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import LabError
from thinwire.lab import commands, probe
from thinwire.lab.lab import Lab
from thinwire.lab.record import Record
from thinwire.lab.shaping import Shape

MESSAGES = (20_000, 100_000, 1_000_000)
RATE_TOLERANCE = 0.1
FASTEST = 0.9  # of the nominal time

_REPEATS = {20_000: 20, 100_000: 20, 1_000_000: 5}
_SUSTAINED_SECONDS = 0.5
_SUSTAINED_REPEATS = 3
_PAUSE_SECONDS = 0.02
_PORT = 30_000


@dataclass(frozen=True, slots=True)
class Timed:
    """A message between two hosts: what it should take at least, and what it took."""

    nbytes: int
    nominal: float
    measured: float

    @property
    def share(self) -> float:
        """Of the nominal time."""
        return self.measured / self.nominal


@dataclass(frozen=True, slots=True)
class Measured:
    """How a link did: a long transfer, and single messages after a pause."""

    shape: Shape
    sustained: Timed
    messages: tuple[Timed, ...]

    @property
    def rate(self) -> float:
        """Payload bits per second, sustained."""
        return 8 * self.sustained.nbytes / self.sustained.measured

    @property
    def holds_rate(self) -> bool:
        """Whether the sustained rate is the nominal one, within the tolerance."""
        return abs(self.rate / self.shape.rate - 1) <= RATE_TOLERANCE

    @property
    def unshaped(self) -> tuple[Timed, ...]:
        """Messages that were faster than the link."""
        return tuple(each for each in self.messages if each.share < FASTEST)

    def within_burst(self, message: Timed) -> bool:
        """Whether the bucket lets it pass at once: its time is then the system's."""
        return message.nbytes <= self.shape.burst


def verify(rate: str) -> Measured:
    """Measure a link of this rate, in a lab of two hosts made for it."""
    with Lab(2, rate) as lab:
        return measure(lab.record)


def measure(record: Record, source: int = 0, target: int = 1) -> Measured:
    """Measure the way from one host of a lab to another."""
    shape = Shape(min(record.rates[source], record.rates[target]))
    long = round(_SUSTAINED_SECONDS * shape.rate / 8)
    series = [(size, _REPEATS[size]) for size in MESSAGES]
    times = _probe(record, source, target, [*series, (long, _SUSTAINED_REPEATS)])
    sizes = (*MESSAGES, long)
    timed = [
        Timed(size, shape.link.transfer(size), min(each))
        for size, each in zip(sizes, times, strict=True)
    ]
    return Measured(shape, timed[-1], tuple(timed[:-1]))


def _probe(
    record: Record, source: int, target: int, series: list[tuple[int, int]]
) -> list[list[float]]:
    """The seconds that each message of each (size, repeats) took."""
    specs = [f"{size}:{repeats}:{_PAUSE_SECONDS}" for size, repeats in series]
    with _start(record, target, "receive", str(_PORT)) as receiver:
        try:
            _line(receiver)
            address = record.address(target)
            with _start(record, source, "send", address, str(_PORT), *specs) as sender:
                return [json.loads(_line(sender)) for _ in series]
        finally:
            receiver.kill()


def _start(record: Record, host: int, *arguments: str) -> subprocess.Popen[str]:
    enter = [commands.find("ip") or "ip", "netns", "exec", record.namespace(host)]
    script = [sys.executable, "-I", "-S", str(Path(probe.__file__)), *arguments]
    return subprocess.Popen([*enter, *script], stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise LabError(
            "the probe ended early; its complaint is above. "
            "What this machine lacks: thinwire lab doctor"
        )
    return line
