"""`thinwire methods`: the methods, and the cost of each for a given size."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from thinwire import catalog
from thinwire.codecs import Codec
from thinwire.collectives import Dense
from thinwire.collectives.collective import check_density
from thinwire.cost import Cost, Link
from thinwire.errors import ConfigError
from thinwire.sparse import keep_count
from thinwire.tools.cli import formatting
from thinwire.tools.cli.options import Density, Json, Parameters
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.quantities import parse_count

LINKS = {
    "100 Mbit/s": Link(bandwidth=12.5e6),
    "1 Gbit/s": Link(bandwidth=125e6),
    "10 Gbit/s": Link(bandwidth=1250e6),
}

_NOTES = """\
law: what holds of "sum of gradients = delivered + remembered". exact: to the last bit \
but for float addition; rounding: within the library's all-reduce; none: an estimate.
codec: how lists become bytes; '-' where dense buffers travel.
The times are floors, computed as bytes / bandwidth: no latency, no processor time. \
All methods but dense also agree on finite gradients, which costs one all-reduce of a \
few bytes."""

_ALONE = (
    "One worker sends nothing, whatever the method: give --workers 2 or more to see "
    "bytes and times."
)


def command(
    *,
    parameters: Parameters = "25M",
    density: Density = 0.01,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 8,
    json: Json = None,
) -> None:
    """List the methods, and what each would send for a gradient of some size."""
    outputs = Outputs(json)
    outputs.check()
    cards = Cards(parse_count(parameters, "parameters"), density, workers)
    show(cards, outputs.console)
    outputs.write(cards.as_dict())


@dataclass(frozen=True, slots=True)
class Card:
    """A method and its cost; None where it has no fixed one, and `why`."""

    name: str
    method: catalog.Method
    codec: str | None
    grade: str
    cost: Cost | None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Cards:
    """Every method's card for a gradient of `size` elements on `ranks` workers."""

    size: int
    density: float
    ranks: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"parameters is {self.size}: give 0 or more")
        if self.ranks < 1:
            raise ConfigError(f"workers is {self.ranks}: give 1 or more")
        check_density(self.density)

    @property
    def dense(self) -> Cost:
        """What everything is compared with."""
        return Dense().cost(self.size, self.ranks, None)

    def all(self) -> list[Card]:
        """In the order of the catalog."""
        return [self._card(name, method) for name, method in catalog.METHODS.items()]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "size": self.size,
            "density": self.density,
            "kept": keep_count(self.size, self.density),
            "ranks": self.ranks,
            "methods": [self._card_as_dict(card) for card in self.all()],
        }

    def _card(self, name: str, method: catalog.Method) -> Card:
        reducer = catalog.reducer(name, density=self.density)
        cost, why = None, None
        try:
            cost = reducer.collective.cost(self.size, self.ranks, reducer.codec)
        except (
            ConfigError
        ) as error:  # it depends on the data, or it cannot run on these ranks
            why = str(error)
        grade = reducer.collective.grade.value
        return Card(name, method, _codec_name(reducer.codec), grade, cost, why)

    def _card_as_dict(self, card: Card) -> dict[str, Any]:
        about = {
            "name": card.name,
            "summary": card.method.summary,
            "codec": card.codec,
            "grade": card.grade,
            "options": list(card.method.options),
        }
        if card.cost is None:
            return {**about, "cost": None, "why": card.why}
        dense = self.dense.nbytes
        cost = {
            "rounds": card.cost.rounds,
            "bytes_sent": card.cost.nbytes,
            "of_dense": card.cost.nbytes / dense if dense else None,
            "wire_ms": {n: 1e3 * link.seconds(card.cost) for n, link in LINKS.items()},
        }
        return {**about, "cost": cost}


def show(cards: Cards, console: Console) -> None:
    """Show two tables that fit 80 columns, and explain their terms."""
    console.print(_list_table(cards))
    if cards.ranks == 1:
        console.print(_ALONE, highlight=False)
        return
    console.print(_cost_table(cards))
    for card in cards.all():
        if card.why is not None:
            console.print(f"{card.name}: {card.why}", markup=False, highlight=False)
    console.print(_NOTES, style="dim", highlight=False)


def _list_table(cards: Cards) -> Table:
    table = Table(title="Methods", title_justify="left")
    table.add_column("method", style="bold", no_wrap=True)
    table.add_column("what it sends")
    table.add_column("codec")
    table.add_column("law")
    for card in cards.all():
        table.add_row(card.name, card.method.summary, card.codec or "-", card.grade)
    return table


def _cost_table(cards: Cards) -> Table:
    kept = keep_count(cards.size, cards.density)
    table = Table(
        title=f"One reduction of {cards.size:,} elements "
        f"({formatting.nbytes(4 * cards.size)}) on {cards.ranks} workers; "
        f"sparse methods keep {kept:,}",
        title_justify="left",
    )
    table.add_column("method", style="bold", no_wrap=True)
    for heading in ("rounds", "sent per worker", "of dense", *LINKS):
        table.add_column(heading, justify="right")
    for card in cards.all():
        table.add_row(card.name, *_cost_cells(card.cost, cards.dense))
    return table


def _cost_cells(cost: Cost | None, dense: Cost) -> list[str]:
    if cost is None:
        return ["-"] * (3 + len(LINKS))
    return [
        str(cost.rounds),
        formatting.nbytes(cost.nbytes),
        formatting.share(cost.nbytes, dense.nbytes),
        *(formatting.milliseconds(link.seconds(cost)) for link in LINKS.values()),
    ]


def _codec_name(codec: Codec | None) -> str | None:
    return None if codec is None else catalog.codec_name(codec)
