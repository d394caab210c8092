"""Quantities with a unit, as users read and type them: rates and durations."""

import re

from thinwire.errors import ConfigError

UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_FASTEST = 100 * 10**9

_PER_SECOND = {"us": 1e6, "ms": 1e3, "s": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?(?:e-?\d+)?)(us|ms|s)")


def parse_rate(text: str) -> int:
    """Bits per second.

    >>> parse_rate("1gbit"), parse_rate("2.5mbit")
    (1000000000, 2500000)
    """
    match = _RATE.fullmatch(text.strip().lower())
    rate = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if not 0 < rate <= _FASTEST:
        raise ConfigError(
            f"rate is {text!r}: give a number and kbit, mbit or gbit, such as 100mbit; "
            "at most 100gbit"
        )
    return rate


def rate_text(bits: float) -> str:
    """Bits per second as networks are named.

    >>> rate_text(10**9), rate_text(2_512_345), rate_text(10)
    ('1 Gbit/s', '2.51 Mbit/s', '0.01 kbit/s')
    """
    units = {unit[0]: step for unit, step in UNITS.items() if step <= bits}
    prefix, step = max(units.items(), key=lambda unit: unit[1], default=("k", 1000))
    name = prefix if prefix == "k" else prefix.upper()
    digits = f"{bits / step:.3g}" if bits < 999 * step else f"{bits / step:.0f}"
    return f"{digits} {name}bit/s"


def parse_duration(text: str, what: str) -> float:
    """Seconds.

    >>> parse_duration("0.2s", "backward"), parse_duration("100us", "latency")
    (0.2, 0.0001)
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        raise ConfigError(
            f"{what} is {text!r}: give a number and s, ms or us, such as 200ms"
        )
    return float(match[1]) / _PER_SECOND[match[2]]
