"""Trial: the times of several ways to reduce, and which way is the fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# The number of the dense way, which is preferred where no other is clearly faster.
DENSE = 0
# A smaller difference is not worth a change: a share, and nanoseconds.
SHARE = 0.02
LEAST = 150_000
# A first reduction may take this many nanoseconds by accident. A way is given up if its
# first reduction is longer and `HOPELESS` times as long as the best way's, or if each
# counted one is `BEHIND` times as long.
ACCIDENT = 500_000_000
HOPELESS, BEHIND = 10, 2
# The share of the time until the next trial that it may cost.
BUDGET = 0.005


@dataclass(frozen=True, slots=True)
class Trial:
    """The nanoseconds of every reduction by every way, in visits of `visit`."""

    times: Sequence[Sequence[int]]
    visit: int

    def next(self, rounds: int) -> int | None:
        """The way to time next, in `rounds` visits each; None at the end."""
        open_ways = [
            number
            for number, each in enumerate(self.times)
            if len(each) < rounds * self.visit and not self._given_up(number)
        ]
        for number in open_ways:
            if len(self.times[number]) % self.visit:
                return number  # a visit is finished before the next one
        rivals = self._rivals()
        if not open_ways or (len(rivals) == 1 and self.times[rivals[0]]):
            return None
        # The last one first: it is probably the fastest, which cuts the others short.
        return min(open_ways, key=lambda number: (len(self.times[number]), -number))

    def fastest(self, usual: int) -> int:
        """The fastest way, or `usual` if that is about as fast."""
        typical = {n: self._typical(n) for n in self._rivals() if self.times[n]}
        return _preferred(typical, usual)

    def typical(self, number: int) -> float | None:
        """The usual nanoseconds of a way, if it was timed."""
        return self._typical(number) if self.times[number] else None

    def affordable_wait(self, chosen: int) -> int:
        """The number of steps after which a trial like this is within the budget."""
        if not self.times[chosen]:
            return 0
        usual = self._typical(chosen)
        visits = [
            self._counted(number)[: self.visit] or each
            for number, each in enumerate(self.times)
        ]
        extra = sum(max(0.0, each - usual) for visit in visits for each in visit)
        return round(extra / (BUDGET * max(usual, 1)))

    def _rivals(self) -> list[int]:
        return [n for n in range(len(self.times)) if not self._given_up(n)]

    def _given_up(self, number: int) -> bool:
        """Whether this way is so far behind another that it need not be timed again."""
        mine = self.times[number]
        timed = [self._typical(n) for n in range(len(self.times)) if self._counted(n)]
        if not mine or not timed:
            return False
        counted = self._counted(number)
        if not counted:
            return mine[0] > max(HOPELESS * min(timed), ACCIDENT)
        return min(counted) > BEHIND * min(timed)

    def _counted(self, number: int) -> list[int]:
        return [each for n, each in enumerate(self.times[number]) if n % self.visit]

    def _typical(self, number: int) -> float:
        return median(self._counted(number) or self.times[number])


def _preferred(typical: Mapping[int, float], usual: int) -> int:
    fastest = min(typical, key=typical.__getitem__)
    if usual not in typical:
        return fastest
    allowance = max(SHARE * typical[fastest], LEAST)
    return usual if typical[usual] <= typical[fastest] + allowance else fastest
