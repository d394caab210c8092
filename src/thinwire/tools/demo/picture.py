"""The picture of the demo: held-out loss against seconds, as one SVG file."""

from collections.abc import Sequence

from thinwire.tools.demo import methods
from thinwire.tools.demo.loop import Run
from thinwire.tools.report.curves import Series, curves


def draw(runs: Sequence[Run], title: str, about: str) -> str:
    """The file's content; plain DDP's last loss is a line across."""
    goal = next((run.loss for run in runs if run.method == methods.PLAIN), None)
    # The first of a colour is drawn without dashes: plain DDP, and the best of ours.
    order = sorted(runs, key=lambda run: (run.method != methods.PLAIN, run.loss))
    axes = ("seconds of training", "loss")
    every = [_series(run) for run in order]
    return curves(every, axes, title, heading=(title, about), level=goal) + "\n"


def _series(run: Run) -> Series:
    # Where every method starts says nothing: lines begin at the first look after it.
    looks = run.looks[1:] or run.looks
    return Series(
        f"{methods.label(run.method)} {run.loss:.2f}",
        [(look.seconds, look.loss) for look in looks],
        ours=not methods.is_of_torch(run.method),
    )
