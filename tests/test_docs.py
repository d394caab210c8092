"""The documents say what the code says."""

import re
from pathlib import Path

import pytest

from thinwire import catalog
from thinwire.cost import Cost
from thinwire.hooks.attach import attach

ROOT = Path(__file__).parents[1]
CARDS = (ROOT / "docs" / "algorithms.md").read_text()
README = (ROOT / "README.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The body of the table under a line of column names."""
    lines = CARDS[CARDS.index(heading) :].splitlines()[2:]
    table = lines[: next(i for i, line in enumerate([*lines, ""]) if not line)]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table]


EXAMPLES = rows("| method | n | density | P | rounds | bytes |")
PACKETS = rows("| codec | size | nnz | bytes |")


@pytest.mark.parametrize("row", EXAMPLES, ids="-".join)
def test_cards_are_the_costs(row):
    method, size, density, ranks, rounds, nbytes = row
    options = {} if density == "-" else {"density": float(density)}
    reducer = catalog.reducer(method, **options)
    cost = reducer.collective.cost(int(size), int(ranks), reducer.codec)
    assert cost == Cost(int(rounds), int(nbytes))


@pytest.mark.parametrize("row", PACKETS, ids="-".join)
def test_packets_have_the_stated_length(row):
    codec, size, nnz, nbytes = row
    assert catalog.codec(codec).nbytes(int(size), int(nnz)) == int(nbytes)


def test_every_method_and_codec_has_a_card():
    assert {row[0] for row in EXAMPLES} == set(catalog.METHODS)
    known = {**catalog.INDEX_CODECS, **catalog.VALUE_CODECS}
    for codec in {type(codec).__name__ for codec in known.values()}:
        assert f"### `{codec}`" in CARDS, codec
    for name in known:
        assert f"`{name}`" in CARDS, name
    for name, method in catalog.METHODS.items():
        assert f"### `{name}`: class `{method.collective.__name__}`" in CARDS


def test_the_readme_lists_every_method_and_option():
    for name in catalog.METHODS:
        assert f"| `{name}` |" in README
    signature = attach.__annotations__.keys() - {"model", "method", "options", "return"}
    for option in signature:
        assert re.search(rf"`{option}`", README), option
