"""What counts as a number in an argument: no bool, string or tensor, and never NaN."""

from math import inf
from numbers import Integral, Real


def is_number(
    value: object,
    *,
    least: float = -inf,
    most: float = inf,
    above: float = -inf,
    below: float = inf,
) -> bool:
    """Whether a value is a finite number within these bounds.

    >>> is_number(0.5, above=0.0, most=1.0), is_number(True), is_number(float("inf"))
    (True, False, False)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        number = float(value)
    except OverflowError:
        return False
    return least <= number <= most and above < number < below


def is_whole(value: object, *, least: float = -inf, most: float = inf) -> bool:
    """Whether a value is an integer within these bounds.

    >>> is_whole(3, least=1), is_whole(3.0), is_whole(False)
    (True, False, False)
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and least <= value <= most  # type: ignore[operator]
