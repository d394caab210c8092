"""How a link is slowed down: a token bucket as small as the rate allows.

A token bucket lets a message smaller than its burst through at once, so the burst
should be small. It must not be too small either: tokens that arrive while the bucket is
full are lost, and a timer that fires late fills it. Two things were found by trying.
The rate holds with far smaller buckets if packets are smaller still, but not as small
as frames, each of which costs processor time that the hosts share: what the kernel
offloads, 64 kB at a time, is limited to two thirds of the burst, or to a pair of frames
where that fits. Then 0.08 ms of the rate and 2.4 kB are enough, except where all links
together carry more than 1 Gbit/s per processor: docs/reference/lab.md.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.tools.quantities import UNITS, parse_rate

_TIMER_SECONDS = 0.08e-3
_CROWDED_TIMER_SECONDS = 0.25e-3  # for each Gbit/s of a processor's
_LATEST_TIMER_SECONDS = 2e-3
_CROWD = 10**9
_LEAST_BURST = 2400
_PAIR_BYTES = 2 * 1514 + 320  # two frames, and what TCP keeps free for headers
_LARGEST_SEGMENTS = 65536  # the kernel's default

# As deep as a small switch's: several senders to one host wait rather than drop.
_QUEUE_SECONDS = 50e-3
_SHORTEST_QUEUE = 256_000

_LEAST_DELAYED = 1000  # packets: the kernel's default
_SMALL_FRAME = 600
_PERCENT = re.compile(r"(\d+(?:\.\d*)?)%")
_MOST_LOST = 50.0


@dataclass(frozen=True, slots=True)
class Shape:
    """One direction of a host's link: `rate` in bits per second, the rest in bytes.

    >>> Shape(10**9).burst, Shape(10**8).burst
    (12400, 3400)
    """

    rate: int
    timer: float = _TIMER_SECONDS  # how late the kernel may be

    @property
    def burst(self) -> int:
        """What a link that was idle lets through at once."""
        return _LEAST_BURST + round(self.timer * self.rate / 8)

    @property
    def segments(self) -> int:
        """The largest packet that the kernel may pass on unsegmented."""
        pair = _PAIR_BYTES if self.burst >= _PAIR_BYTES else 0
        return min(_LARGEST_SEGMENTS, max(pair, 2 * self.burst // 3))

    @property
    def queue(self) -> int:
        """Bytes that wait; more are dropped."""
        return max(_SHORTEST_QUEUE, round(_QUEUE_SECONDS * self.rate / 8))

    @property
    def link(self) -> Link:
        """The same for the cost cards."""
        return Link(bandwidth=self.rate / 8)

    def discipline(self) -> str:
        """The same for tc."""
        return f"tbf rate {self.rate}bit burst {self.burst} limit {self.queue}"


def shapes(rates: Sequence[int], processors: int | None = None) -> list[Shape]:
    """The shape of every host's link, in a lab of these rates.

    >>> [shape.burst for shape in shapes([10**9] * 2, processors=2)]
    [12400, 12400]
    >>> shapes([10**9] * 8, processors=2)[0].burst
    127400
    """
    crowd = sum(rates) / _CROWD / (processors or os.cpu_count() or 1)
    timer = _TIMER_SECONDS if crowd <= 1 else _CROWDED_TIMER_SECONDS * crowd
    return [Shape(rate, min(timer, _LATEST_TIMER_SECONDS)) for rate in rates]


def disciplines(
    interface: str, shape: Shape, delay: float = 0.0, loss: float = 0.0
) -> list[str]:
    """The lines for tc that shape what leaves an interface.

    >>> disciplines("eth0", Shape(10**8), delay=0.02, loss=0.001)[0]
    'qdisc replace dev eth0 root handle 1: netem limit 1000 delay 20000us loss 0.1%'
    """
    if not (delay or loss):
        return [f"qdisc replace dev {interface} root {shape.discipline()}"]
    # What is under way at once, in frames of the smallest size that a stream sends.
    limit = max(_LEAST_DELAYED, round(delay * shape.rate / 8 / _SMALL_FRAME))
    late = f" delay {1e6 * delay:.0f}us" if delay else ""
    lost = f" loss {100 * loss:g}%" if loss else ""
    return [
        f"qdisc replace dev {interface} root handle 1: netem limit {limit}{late}{lost}",
        f"qdisc replace dev {interface} parent 1:1 handle 10: {shape.discipline()}",
    ]


def parse_loss(text: str) -> float:
    """The part of the packets that is lost.

    >>> parse_loss("0.1%"), parse_loss("0%")
    (0.001, 0.0)
    """
    match = _PERCENT.fullmatch(text.strip())
    if not match or float(match[1]) > _MOST_LOST:
        raise ConfigError(
            f"loss is {text!r}: give a number from 0 to {_MOST_LOST:g} and %, such as "
            "0.1%"
        )
    return float(match[1]) / 100


def parse_rates(text: str, hosts: int) -> tuple[int, ...]:
    """A rate for each host: one for all, or as many as there are hosts.

    >>> parse_rates("1gbit", 2), parse_rates("10mbit,1mbit", 2)
    ((1000000000, 1000000000), (10000000, 1000000))
    """
    rates = tuple(parse_rate(each) for each in text.split(","))
    if len(rates) == 1:
        return rates * hosts
    if len(rates) != hosts:
        raise ConfigError(
            f"{len(rates)} rates for {hosts} hosts: give one for all, or one for each"
        )
    return rates


def rate_name(rate: int) -> str:
    """A rate as it is typed.

    >>> rate_name(10**9), rate_name(2_500_000), rate_name(1)
    ('1gbit', '2.5mbit', '0.001kbit')
    """
    fitting = [unit for unit, bits in UNITS.items() if bits <= rate]
    unit = fitting[-1] if fitting else "kbit"
    return f"{rate / UNITS[unit]:g}{unit}"
