"""Numbers as text: bytes, milliseconds, counts, fractions."""

_PREFIXES = ("", "k", "M", "G", "T", "P")
_STEP = 1000


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
    return f"{_three_digits(1e3 * seconds)} ms"


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent.

    >>> share(1, 25), share(3, 3), share(0, 0)
    ('4 %', '100 %', '-')
    """
    if not whole:
        return "-"
    return f"{_three_digits(100 * part / whole)} %"


def _scaled(number: float) -> str:
    scale = 0
    while round(number) >= _STEP and scale < len(_PREFIXES) - 1:
        number /= _STEP
        scale += 1
    return f"{_three_digits(number)} {_PREFIXES[scale]}"


def _three_digits(number: float) -> str:
    return f"{number:.0f}" if round(number) >= _STEP else f"{number:.3g}"
