"""Quantities as users read and type them: counts, rates and durations."""

import re
from math import isfinite, nan

from thinwire.errors import ConfigError

UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# B is bytes for everyone, so that only b is taken for bits.
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG])(?:(?i:bit)(?:/?s)?|bps|b/s)")
_FASTEST = 100 * 10**9

_PER_SECOND = {"us": 1e6, "ms": 1e3, "s": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?(?:e-?\d+)?)(us|ms|s)")

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGbBtT])")
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}


def parse_count(text: str, what: str) -> int:
    """A whole number, written plainly, as 25e6 or as 25M.

    >>> parse_count("25e6", "size"), parse_count("1.5B", "size"), parse_count("0", "")
    (25000000, 1500000000, 0)
    """
    match = _COUNT.fullmatch(text.strip())
    try:
        number = float(match[1] if match else text)
    except ValueError:
        number = nan
    if match:  # in thousandths: 1.1 k is 1100, not 1100.0000000000002
        number = round(1000 * number) * _THOUSANDS[match[2].lower()] / 1000
    if not isfinite(number) or number != int(number):
        raise ConfigError(
            f"{what} is {text!r}: give a whole number, such as 25000000, 25e6 or 25M"
        )
    return int(number)


def parse_rate(text: str) -> int:
    """Bits per second.

    >>> parse_rate("1gbit"), parse_rate("2.5mbit"), parse_rate("1Gbps")
    (1000000000, 2500000, 1000000000)
    """
    match = _RATE.fullmatch(text.strip())
    rate = round(float(match[1]) * UNITS[f"{match[2].lower()}bit"]) if match else 0
    if not 0 < rate <= _FASTEST:
        raise ConfigError(
            f"rate is {text!r}: give a number and kbit, mbit or gbit, such as 100mbit "
            "or 1Gbps, in bits; at most 100gbit"
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
    match = _DURATION.fullmatch(text.strip().lower().replace("µs", "us"))
    if not match:
        raise ConfigError(
            f"{what} is {text!r}: give a number and s, ms or us, such as 200ms"
        )
    return float(match[1]) / _PER_SECOND[match[2]]
