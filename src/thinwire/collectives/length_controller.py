"""LengthController: how many entries teams send to fill a block's budget kb.

The union of d lists of h entries has between h and d h entries, depending on how much
the lists of the teams overlap. The controller searches for the h at which the union has
kb entries. While the direction is right it keeps it, and doubles the step every two
steps; otherwise it reverses it and halves the step. It is the controller of SparDL's
authors with three corrections: h is never 0, never above kb, and the step is never 0
nor beyond kb.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from thinwire.collectives.memory import CollectiveMemory


@dataclass(frozen=True, slots=True)
class LengthController:
    """Each team sends `h` entries in this step; `step` and `streak` give the next `h`.

    >>> controller, seen = LengthController.start(budget=1000, teams=4), []
    >>> for _ in range(12):
    ...     seen.append(controller.h)
    ...     union = int(2.5 * controller.h)
    ...     controller = controller.after(union, budget=1000, teams=4)
    >>> seen
    [250, 257, 271, 285, 313, 341, 397, 453, 425, 397, 411, 404]
    """

    h: int
    step: int
    streak: int = 0

    @classmethod
    def start(cls, budget: int, teams: int) -> "LengthController":
        """The first `h`: no union exceeds the budget."""
        h = _least(budget, teams)
        return cls(h, max(1, (budget - h) // 100))

    def clamped(self, budget: int, teams: int) -> "LengthController":
        """The same, within the limits of a budget that may have changed."""
        step = max(-max(budget, 1), min(self.step, max(budget, 1)))
        h = max(_least(budget, teams), min(self.h, budget))
        return LengthController(h, step, self.streak)

    def after(self, union: int, budget: int, teams: int) -> "LengthController":
        """The controller of the next step, after a union of `union` entries."""
        too_many, rising = union > budget, self.step > 0
        step, streak = self.step, 0
        if too_many != rising:
            step, streak = (2 * step, 0) if self.streak else (step, 1)
        else:
            step = -step if abs(step) <= 1 else int(-step / 2)
        return LengthController(self.h + step, step, streak).clamped(budget, teams)


def _least(budget: int, teams: int) -> int:
    return min(budget, max(1, budget // teams))


@dataclass(slots=True)
class SparDLMemory(CollectiveMemory):
    """The controller of the block that this rank owns, at `position` in its team.

    The owners of a block, one in each team, hold the same numbers.
    """

    teams: int = 0
    position: int = 0
    controller: LengthController | None = None

    def controller_for(
        self, budget: int, teams: int, position: int
    ) -> LengthController:
        """The controller of a block; a new one if the last one was of another block."""
        same = (self.teams, self.position) == (teams, position)
        if self.controller is None or not same:
            return LengthController.start(budget, teams)
        return self.controller.clamped(budget, teams)

    def load_dict(self, saved: Mapping[str, int]) -> None:
        self.teams, self.controller = saved.get("teams", 0), None
        for name in saved:
            kind, _, position = name.partition("@")
            if kind == "h" and position.isdecimal():
                rest = [
                    saved.get(f"{each}@{position}", 0) for each in ("step", "streak")
                ]
                self.position, self.controller = (
                    int(position),
                    LengthController(saved[name], *rest),
                )

    def common(self) -> dict[str, int]:
        return {} if self.controller is None else {"teams": self.teams}

    def partial(self) -> dict[str, int]:
        known = {} if self.controller is None else asdict(self.controller)
        return {f"{name}@{self.position}": value for name, value in known.items()}
