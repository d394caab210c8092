"""Hurt training for some seconds, and check it after every step.

    make chaos SECONDS=1800
    python -m chaos --seed 7 --round 12     # that round again

A round is drawn from the seed and its number: method, codec, feedback, scope, two to
six processes, loopback or a lab (as root), a model, and faults. The exit status is 1 if
anything is found; then its logs stay.
"""

import argparse
import secrets
import sys
import time
from collections import Counter

from chaos.conductor import Outcome, run
from chaos.plan import Plan, draw
from chaos.plants import PLANTS
from thinwire.tools.lab import doctor


def main() -> None:
    """Run rounds until the time is over or something is found."""
    options = _options()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    lab = not options.no_lab and not doctor.missing()
    print(f"seed {seed}, {'with' if lab else 'without'} labs", flush=True)
    most = 1 if options.round is not None else options.rounds
    begin, total = time.monotonic(), Total(seed)
    while not total.found and time.monotonic() - begin < options.seconds:
        plan = draw(seed, (options.round or 0) + total.rounds, lab=lab)
        print(f"round {plan.number}: {plan}", flush=True)
        total.add(plan, run(plan, options.plant))
        if total.rounds == most:
            break
    print(f"{total} in {time.monotonic() - begin:.0f} s, seed {seed}")
    sys.exit(1 if total.found else 0)


class Total:
    """What all rounds have come to."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._steps = 0
        self._faults = Counter[str]()
        self.rounds = 0
        self.found = False

    def add(self, plan: Plan, outcome: Outcome) -> None:
        """Count a round, and say what it has found."""
        self.rounds += 1
        self._steps += outcome.steps
        self._faults.update(outcome.faults)
        self._faults.update(f.kind for f in plan.passing if f.kind in _UNSAID)
        for each in outcome.wrong:
            print(f"FOUND in round {plan.number}: {each}")
        if outcome.wrong:
            self.found = True
            print(f"again: python -m chaos --seed {self._seed} --round {plan.number}")
            print(f"logs: {outcome.folder}")

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self._faults.items()))
        count = self._faults.total()
        return f"{self.rounds} rounds, {self._steps} steps, {count} faults ({kinds})"


def _options() -> argparse.Namespace:
    about = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="chaos", description=about)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="a random one by default")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--rounds", type=int, help="stop after this number")
    parser.add_argument("--no-lab", action="store_true", help="loopback only")
    parser.add_argument("--plant", choices=PLANTS, help="a defect to be found")
    return parser.parse_args()


# What ranks do without a word to the conductor.
_UNSAID = ("bad batch", "density", "disagreement", "save", "scale")

if __name__ == "__main__":
    main()
