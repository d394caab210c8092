"""Numbers as people read them: bytes, milliseconds, counts, fractions."""

from math import isfinite

import typer

_PREFIXES = ("", "k", "M", "G", "T", "P")


def nbytes(count: float) -> str:
    """Bytes with a decimal prefix.

    >>> nbytes(0), nbytes(999), nbytes(4_944_960), nbytes(200e6)
    ('0 B', '999 B', '4.94 MB', '200 MB')
    """
    return _scaled(count) + "B"


def count(number: float) -> str:
    """A number of things, with a decimal prefix.

    >>> count(25_000_000), count(824_160), count(7)
    ('25 M', '824 k', '7')
    """
    return _scaled(number).strip()


def milliseconds(seconds: float) -> str:
    """A duration in milliseconds, to three digits.

    >>> milliseconds(1.4), milliseconds(0.0351), milliseconds(0.00002)
    ('1400 ms', '35.1 ms', '0.02 ms')
    """
    ms = 1e3 * seconds
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent.

    >>> share(1, 25), share(3, 3), share(0, 0)
    ('4.0 %', '100 %', '-')
    """
    if not whole:
        return "-"
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"


def parse_count(text: str) -> int:
    """A whole number, written plainly or as 25e6.

    >>> parse_count("25e6"), parse_count("0")
    (25000000, 0)
    """
    try:
        number = float(text.replace("_", ""))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a number: write 25000000 or 25e6"
        ) from error
    if not isfinite(number) or number != int(number):
        raise typer.BadParameter(f"{text} is not a whole number")
    return int(number)


def _scaled(number: float) -> str:
    scale = 0
    while abs(number) >= 999.5 and scale < len(_PREFIXES) - 1:
        number /= 1000
        scale += 1
    return f"{number:.3g} {_PREFIXES[scale]}"
