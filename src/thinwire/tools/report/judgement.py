"""The verdict on timed methods: which to use, or that there is no difference."""

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.tools.report import page
from thinwire.tools.report.words import Figures, dense_of, ms, name_of, nbytes, size


@dataclass(frozen=True, slots=True)
class Judgement:
    """The best method, dense, and those that cannot be told from the best.

    Times differ where their quartiles do not overlap. Of those that do not differ, the
    best sends the fewest bytes.
    """

    best: Figures
    dense: Figures
    same: Sequence[Figures]

    @classmethod
    def of(cls, rows: Sequence[Figures]) -> "Judgement":
        """Of all rows that exchange gradients."""
        exchanging = [row for row in rows if row["label"] != "no exchange"]
        dense = dense_of(exchanging)
        fastest = min(exchanging, key=lambda row: row["seconds"])
        close = [row for row in exchanging if _overlap(row, fastest)]
        if dense in close:
            best = dense
        else:
            best = min(close, key=lambda row: (nbytes(row) or 0.0, row["seconds"]))
        same = [row for row in close if row is not best and row is not dense]
        return cls(best, dense, same)

    @property
    def times(self) -> float:
        """How many times as fast as dense."""
        return float(self.dense["seconds"] / self.best["seconds"])

    @property
    def headline(self) -> str:
        """What to do."""
        if self.best is not self.dense:
            return f"Use {name_of(self.best)}"
        if self.same:
            return "No difference: stay with plain DDP"
        return "Stay with plain DDP"

    def drawn(self, what: str) -> str:
        """As a part of a page; `what` took the time."""
        names = ", ".join(map(name_of, self.same))
        if self.best is self.dense:
            figures = [(ms(self.dense["seconds"]), f"{what}, plain DDP")]
            why = (
                f"{names}: quartiles overlap with plain DDP's."
                if self.same
                else "It is the fastest here."
            )
            return page.verdict(self.headline, figures, why, use=False)
        figures = [
            (
                ms(self.best["seconds"]),
                f"{what}; plain DDP {ms(self.dense['seconds'])}",
            ),
            (f"{self.times:.3g} times", "as fast as plain DDP"),
        ]
        if nbytes(self.best) is not None:
            sent = f"sent; plain DDP {size(nbytes(self.dense))}"
            figures.append((size(nbytes(self.best)), sent))
        why = f"As fast, as far as quartiles tell: {names}." if self.same else ""
        return page.verdict(self.headline, figures, why, use=True)


def _overlap(one: Figures, other: Figures) -> bool:
    return bool(one["low"] <= other["high"] and other["low"] <= one["high"])
