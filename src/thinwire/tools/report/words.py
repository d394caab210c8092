"""Names and numbers of figures, in words: the same on every page."""

from collections.abc import Iterable, Mapping
from typing import Any

Figures = Mapping[str, Any]

DENSE = "torch"
"""The method that everything is compared with, in figures of `thinwire bench`."""

_PEERS = {
    "torch": "plain DDP",
    "torch-bf16": "DDP + bf16 hook",
    "torch-fp16": "DDP + fp16 hook",
    "no exchange": "no exchange",
}


def name_of(row: Figures) -> str:
    """What a row is called on a page.

    >>> name_of({"label": "powersgd-2"}), name_of({"label": "spardl:teams=2"})
    ('PowerSGD rank 2', 'spardl:teams=2')
    """
    label = str(row["label"])
    method, _, rank = label.partition("-")
    if method == "powersgd" and rank:
        return f"PowerSGD rank {rank}"
    return _PEERS.get(label, label)


def dense_of(rows: Iterable[Figures]) -> Figures:
    """Plain DDP's row."""
    return next(row for row in rows if row["label"] == DENSE)


def nbytes(row: Figures) -> float | None:
    """What the busiest rank sent; None where nothing counted it."""
    wire = row.get("wire")
    count: float | None = row["sent"] if wire is None else wire
    return count


def ms(seconds: float) -> str:
    """Milliseconds with their unit."""
    return f"{number(1e3 * seconds)} ms"


def number(value: float) -> str:
    """Three digits.

    >>> number(123.456), number(0.00123), number(12345.6)
    ('123', '0.00123', '12300')
    """
    return f"{float(f'{value:.3g}'):g}"


def size(count: float | None) -> str:
    """Bytes with a decimal prefix, or a dash.

    >>> size(5_620_000), size(20_000), size(999), size(None)
    ('5.62 MB', '20 kB', '999 B', '-')
    """
    if count is None:
        return "-"
    units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    unit, name = next(((u, n) for u, n in units if count >= u), (1.0, "B"))
    return f"{number(count / unit)} {name}"


def rate(bits: float) -> str:
    """Bits per second as networks are named."""
    scale = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")]
    unit, name = next(((u, n) for u, n in scale if bits >= u), (1.0, "bit/s"))
    return f"{bits / unit:g} {name}"


def link(figures: Figures) -> str:
    """What connects the workers."""
    if figures["place"] == "loopback":
        return "loopback"
    if figures["place"] == "lab" or figures["rate"]:
        late = figures.get("delay", 0.0)  # files of before have none
        after = f", {ms(late)} late," if late else ""
        return f"links of {rate(figures['rate'])}{after} in a lab"
    return "a network of the user's"


def percent(density: float) -> str:
    """A density."""
    return f"{100 * density:g} %"
