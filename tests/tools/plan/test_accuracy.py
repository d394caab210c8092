"""What a plan says of accuracy is what the page of results says."""

import re
from pathlib import Path

import pytest

from thinwire.tools.plan.accuracy import MEASURED, Behind, behind, held
from thinwire.tools.plan.choice import Choice

PAGE = Path(__file__).parents[3] / "docs" / "experiments" / "results.md"


def differences(heading: str) -> dict[str, float]:
    """The column "against dense" of the table below a heading, by method."""
    text = PAGE.read_text()
    text = text[text.index(f"\n## {heading}") :]
    found = {}
    for line in text[: text.index("\nRuns that differ")].splitlines():
        cells = [cell.strip(" *") for cell in line.strip("| ").split("|")]
        if len(cells) > 3 and re.match(r"[+-]\d", cells[3]):
            found[cells[0]] = float(cells[3].removesuffix("%"))
    return found


def named(method: str, density: float, found: dict[str, float], *ways: str) -> float:
    name, _, teams = method.partition(" teams=")
    words = f"{name} {100 * density:g} %" + f", {teams} teams" * bool(teams)
    return next(found[words + way] for way in ways if words + way in found)


@pytest.mark.parametrize(("method", "density"), MEASURED)
def test_figures_are_those_of_the_page(method, density):
    images = differences("ResNet-20 on CIFAR-10")
    language = differences("Two-layer LSTM on WikiText-2")
    found = MEASURED[method, density]
    ways = ("", ", momentum before selection")
    assert found.images == -named(method, density, images, *ways)
    assert found.language == named(
        method, density, language, ", clipped by each worker"
    )


def test_one_team_is_as_none_and_unmeasured_ones_are_not_guessed():
    assert behind(Choice.parse("spardl:teams=1")) == MEASURED["spardl", 0.01]
    assert behind(Choice.parse("spardl:teams=8")) == Behind(0.16, 0.98)
    assert behind(Choice.parse("topk", 0.005)) is None
    assert behind(Choice.parse("dense")) is None


def test_low_densities_did_not_hold_accuracy():
    assert held(Choice.parse("topk", 0.01))
    assert not held(Choice.parse("topk", 0.001))
    assert held(Choice.parse("dense", 0.001))
