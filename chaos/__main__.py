"""Hurt training for some seconds, and check it after every step.

    make chaos SECONDS=1800
    python -m chaos --seed 7 --round 12     # that round again

A round is drawn from the seed and its number: method, codec, feedback, scope, two to six
processes, loopback or a lab (as root), a model, and faults. The exit status is 1 if
anything is found; then its logs stay.
"""

import argparse
import secrets
import sys
import time
from collections import Counter

from chaos.conductor import run
from chaos.plan import draw
from chaos.plants import PLANTS
from thinwire.tools.lab import doctor


def main() -> None:
    """Run rounds until the time is over or something is found."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="a random one by default")
    parser.add_argument("--round", type=int, help="only this one")
    parser.add_argument("--rounds", type=int, help="at most so many")
    parser.add_argument("--no-lab", action="store_true", help="loopback only")
    parser.add_argument("--plant", choices=PLANTS, help="a defect to be found")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    lab = not options.no_lab and not doctor.missing()
    print(f"seed {seed}, {'with' if lab else 'without'} labs", flush=True)
    begin, first = time.monotonic(), options.round or 0
    steps, done, faults, found = 0, 0, Counter[str](), False
    alone = options.round is not None
    while not found and time.monotonic() - begin < options.seconds:
        plan = draw(seed, first + done, lab=lab)
        print(f"round {plan.number}: {plan}", flush=True)
        outcome = run(plan, options.plant)
        faults.update(outcome.faults)
        faults.update(f.kind for f in plan.passing if f.kind in _UNSAID)
        steps, done = steps + outcome.steps, done + 1
        for each in outcome.wrong:
            print(f"FOUND in round {plan.number}: {each}")
        found = bool(outcome.wrong)
        if found:
            print(f"again: python -m chaos --seed {seed} --round {plan.number}")
            print(f"logs: {outcome.folder}")
        if alone or done == options.rounds:
            break
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    seconds = time.monotonic() - begin
    print(f"{done} rounds, {steps} steps, {sum(faults.values())} faults", end=" ")
    print(f"({kinds}) in {seconds:.0f} s, seed {seed}")
    sys.exit(1 if found else 0)


# What ranks do without a word to the conductor.
_UNSAID = ("bad batch", "density", "disagreement", "save", "scale")

if __name__ == "__main__":
    main()
