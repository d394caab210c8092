"""How many entries each team gives so that their union just fills a block's budget.

The union of d lists of h entries has between h and d h of them, depending on how far
the teams agree. The controller looks for the h at which it has kb: it moves on as long
as the direction is right, with double steps after two of them, and turns with half the
step. It is the one of SparDL's authors, with three repairs: h is never 0, never above
kb, and the step never gets stuck at 0 nor grows beyond kb.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """`h` entries per team in this step, and how the next `h` is looked for.

    >>> ratio, seen = Ratio.start(budget=1000, teams=4), []
    >>> for _ in range(12):
    ...     seen.append(ratio.h)
    ...     ratio = ratio.after(union=int(2.5 * ratio.h), budget=1000, teams=4)
    >>> seen
    [250, 257, 271, 285, 313, 341, 397, 453, 425, 397, 411, 404]
    """

    h: int
    step: int
    streak: int = 0

    @classmethod
    def start(cls, budget: int, teams: int) -> "Ratio":
        """Where the union fits whatever the teams choose."""
        h = _least(budget, teams)
        return cls(h, max(1, (budget - h) // 100))

    def clamped(self, budget: int, teams: int) -> "Ratio":
        """The same within the limits of a budget that may have changed."""
        step = max(-max(budget, 1), min(self.step, max(budget, 1)))
        h = max(_least(budget, teams), min(self.h, budget))
        return Ratio(h, step, self.streak)

    def after(self, union: int, budget: int, teams: int) -> "Ratio":
        """What follows from a union of this many entries."""
        too_many, rising = union > budget, self.step > 0
        step, streak = self.step, 0
        if too_many != rising:
            step, streak = (2 * step, 0) if self.streak else (step, 1)
        else:
            step = -step if abs(step) <= 1 else int(-step / 2)
        return Ratio(self.h + step, step, streak).clamped(budget, teams)


def _least(budget: int, teams: int) -> int:
    return min(budget, max(1, budget // teams))
