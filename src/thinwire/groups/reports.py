"""Reports: what the ranks whose calls failed were sending, and what they expected.

A report is a line of JSON in the store of a process group. A message is identified by
its two ranks and its number, which counts the messages from one to the other.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

Entry = tuple[int, int, int]
"""A peer, the number of a message to or from it, and its length."""


@dataclass(frozen=True, slots=True)
class Report:
    """The messages that were under way; `refused` counts the refused reductions."""

    refused: int = 0
    sends: Sequence[Entry] = ()
    expects: Sequence[Entry] = ()

    def __str__(self) -> str:
        return json.dumps([self.refused, self.sends, self.expects])

    @classmethod
    def read(cls, text: str | bytes) -> "Report":
        """The report in a text; an empty one if there is none.

        >>> Report.read(str(Report(1, [(2, 0, 100)])))
        Report(refused=1, sends=[(2, 0, 100)], expects=[])
        """
        try:
            refused, *lists = json.loads(text)
            sends, expects = (
                [(int(peer), int(number), int(nbytes)) for peer, number, nbytes in each]
                for each in lists
            )
            return cls(int(refused), sends, expects)
        except (ValueError, TypeError, OverflowError):
            return cls()


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two ranks that cannot both be right, and what is wrong."""

    ranks: tuple[int, int]
    text: str


def contradiction(reports: Mapping[int, Report]) -> Contradiction | None:
    """The first message that its sender and its receiver disagree on, if any.

    >>> sender, receiver = Report(0, [(1, 7, 200)]), Report(0, [], [(0, 7, 100)])
    >>> contradiction({0: sender, 1: receiver}).text
    'rank 0 sends 200 bytes where rank 1 expects 100'
    """
    for src, dst in permutations(sorted(reports), 2):
        here, there = reports[src], reports[dst]
        sent = {number: nbytes for peer, number, nbytes in here.sends if peer == dst}
        for peer, number, nbytes in there.expects:
            if peer != src:
                continue
            if sent and here.refused != there.refused:
                text = (
                    f"rank {src} has refused {here.refused} reductions and rank {dst} "
                    f"{there.refused}"
                )
                return Contradiction((src, dst), text)
            if sent.get(number, nbytes) != nbytes:
                text = (
                    f"rank {src} sends {sent[number]} bytes where rank {dst} expects "
                    f"{nbytes}"
                )
                return Contradiction((src, dst), text)
    return None


class Traced:
    """The messages of one direction: how many by peer, and those under way."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._moving: Sequence[tuple[int, int]] = ()

    def start(self, transfers: Sequence[tuple[int, int]]) -> None:
        """Count messages, as (peer, nbytes), and note that they are under way."""
        self._moving = transfers
        for peer, _ in transfers:
            self._counts[peer] += 1

    def finish(self) -> None:
        """They have arrived."""
        self._moving = ()

    def entries(self) -> list[Entry]:
        """The messages that are under way."""
        left = Counter(peer for peer, _ in self._moving)
        found = []
        for peer, nbytes in self._moving:
            found.append((peer, self._counts[peer] - left[peer], nbytes))
            left[peer] -= 1
        return found
