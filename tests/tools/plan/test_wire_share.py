"""The forecast wire time equals the clock of a simulated group."""

import pytest
import torch

from thinwire.cost import Link
from thinwire.groups import Op, simulate
from thinwire.layout import Layout
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.forecast import wire_seconds

SIZE = 30_000
START = 100.0  # seconds: later than any first step ends
RANKS = (2, 3, 4, 5, 8, 16)
# Latency rules, and bytes do.
LINKS = (Link(1e-3, 125e6), Link(0.0, 1e6))
METHODS = (
    "dense",
    "bf16",
    "topk",
    "gtopk",
    "gtopk:variant=tree",
    "gtopk:variant=naive",
    "spardl",
    "spardl:teams=2",
    "spardl:teams=auto",
    "gs-sgd",
    "s2",
    "union",
)
# The cards of these state the most: that ranks have no row in common, and of 16 ranks
# at 1 % some have.
MOST = {"s2": 0.15, "union": 0.1}


def clocks(choice: Choice, ranks: int, link: Link) -> float:
    """Seconds of a step; of S2's second, which is planned with the first's numbers."""
    steps = 2 if choice.method == "s2" else 1

    def body(group):
        state = choice.reducer.init(Layout.flat(SIZE))
        generator = torch.Generator().manual_seed(group.rank)
        for step in range(steps):
            group.spend(step * START - group.now())  # all start together
            grad = torch.randn(SIZE, generator=generator)
            if choice.method == "dense":
                group.all_reduce_((grad, Op.SUM))
            else:
                choice.reducer.reduce_([grad], group, state)
        return group.now() - (steps - 1) * START

    return max(simulate(ranks, body, link=link))


@pytest.mark.parametrize("method", METHODS)
def test_the_wire_takes_what_a_simulated_clock_shows(method):
    choice = Choice.parse(method, density=0.01)
    for ranks in RANKS:
        if "teams=2" in method and ranks % 2:
            continue
        for link in LINKS:
            shown = clocks(choice, ranks, link)
            forecast = wire_seconds(choice, SIZE, ranks, link)
            most = MOST.get(method, 0.0) * forecast
            assert forecast - most - 0.03 * shown <= shown <= forecast + 0.03 * shown, (
                ranks,
                link,
                forecast / shown,
            )
