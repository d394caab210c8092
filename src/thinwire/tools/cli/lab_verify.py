"""`thinwire lab verify`: compares the links of a lab with their nominal rates."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from thinwire.errors import ConfigError
from thinwire.tools.cli.formatting import milliseconds, nbytes, share
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.cli.progress import telling
from thinwire.tools.lab.shaping import rate_name
from thinwire.tools.lab.verify import Measured, Timed, holds_rate, verify
from thinwire.tools.quantities import parse_rate

_LEAST_HOSTS = 2
_HEADINGS = ("burst", "message", "nominal", "measured", "share")

_NOTES = """\
The fastest of several, payload only: headers take 4.5 % of a link, so a perfect one \
takes 105 % for a long transfer. A message after a pause finds the bucket full, and as \
much of it as the burst crosses at once. "all": every host sends to the next, and the \
slowest counts; where that does not hold, this machine cannot carry so many hosts at \
this rate. Measured in labs made for it, without --delay and --loss."""


def run(rates: Sequence[str], hosts: int, outputs: Outputs) -> bool:
    """Measure and show; whether all rates hold and all messages are shaped."""
    outputs.check()
    if hosts < _LEAST_HOSTS:
        raise ConfigError(f"{hosts} hosts: messages need {_LEAST_HOSTS} or more")
    for rate in rates:
        parse_rate(rate)
    measured = []
    with telling("sending messages between hosts") as tell:
        for rate in rates:
            tell(rate)
            measured.append(verify(rate, hosts))
    outputs.console.print(_table(measured, hosts))
    outputs.console.print(_NOTES, style="dim", highlight=False)
    outputs.write([_as_dict(each) for each in measured])
    return all(each.holds for each in measured)


def _table(measured: list[Measured], hosts: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("link", style="bold", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for each in measured:
        name, burst = rate_name(each.shape.rate), nbytes(each.shape.burst)
        for timed in each.messages:
            table.add_row(name, burst, *_cells(timed), _verdict(each, timed))
        table.add_row(name, burst, *_cells(each.alone), _rate(each.alone))
        together = f"{_rate(each.together)}, all {hosts}"
        table.add_row(name, burst, *_cells(each.together), together)
    return table


def _cells(timed: Timed) -> list[str]:
    return [
        nbytes(timed.nbytes),
        milliseconds(timed.nominal),
        milliseconds(timed.measured),
        share(timed.measured, timed.nominal),
    ]


def _verdict(measured: Measured, timed: Timed) -> str:
    if measured.within_burst(timed):
        return "unshaped: in the burst"
    at_once = share(measured.shape.burst, timed.nbytes)
    return f"UNSHAPED: {at_once} burst" if timed in measured.unshaped else "shaped"


def _rate(timed: Timed) -> str:
    slowed = share(timed.nominal, timed.measured)
    return "holds the rate" if holds_rate(timed) else f"{slowed} OF THE RATE"


def _as_dict(measured: Measured) -> dict[str, Any]:
    return {
        "rate_bits": measured.shape.rate,
        "burst_bytes": measured.shape.burst,
        "holds": measured.holds,
        "messages": [
            {
                **_times(each),
                "shaped": each not in measured.unshaped,
                "within_burst": measured.within_burst(each),
            }
            for each in measured.messages
        ],
        "alone": {**_times(measured.alone), "holds": holds_rate(measured.alone)},
        "together": {
            **_times(measured.together),
            "holds": holds_rate(measured.together),
        },
    }


def _times(timed: Timed) -> dict[str, float]:
    return {
        "bytes": timed.nbytes,
        "nominal_ms": 1e3 * timed.nominal,
        "measured_ms": 1e3 * timed.measured,
    }
