"""What training with a method cost in accuracy, as docs/experiments/results.md has it.

`tests/tools/plan/test_accuracy.py` compares these figures with that page.
"""

from dataclasses import dataclass

from thinwire.tools.plan.calibrate import representative
from thinwire.tools.plan.choice import Choice

HELD = 0.01
"""The lowest density that is recommended: below it, accuracy suffered."""

USUAL = "spardl"
"""The method to take where nothing speaks for another: docs/guides/choose.md."""


@dataclass(frozen=True, slots=True)
class Behind:
    """How far behind dense a training ended; less than 0 is ahead."""

    images: float  # points of accuracy: ResNet-20 on CIFAR-10, 8 workers
    language: float  # percent of perplexity: LSTM on WikiText-2, 8 workers


MEASURED = {
    ("topk", 0.01): Behind(0.91, -1.26),
    ("spardl", 0.01): Behind(0.52, 0.24),
    ("spardl teams=2", 0.01): Behind(0.16, 0.98),
    ("gtopk", 0.01): Behind(0.89, 3.97),
    ("gs-sgd", 0.01): Behind(0.52, -2.07),
    ("topk", 0.001): Behind(1.04, 9.75),
    ("spardl", 0.001): Behind(3.26, 16.84),
    ("gtopk", 0.001): Behind(3.54, 30.19),
    ("gs-sgd", 0.001): Behind(13.80, 19.88),
}


def behind(choice: Choice) -> Behind | None:
    """What was measured for a choice; several teams are taken as two.

    >>> behind(Choice.parse("spardl:teams=4", 0.01))
    Behind(images=0.16, language=0.98)
    >>> behind(Choice.parse("spardl:teams=4", 0.02)), behind(Choice.parse("bf16"))
    (None, None)
    """
    label = representative(choice).label.removesuffix(" teams=1")
    return None if choice.density is None else MEASURED.get((label, choice.density))


def held(choice: Choice) -> bool:
    """Whether its density is one that held accuracy, or it has none."""
    return choice.density is None or choice.density >= HELD
