"""The documents agree with the code; what they name exists."""

import posixpath
import re
import tomllib
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from benchmarks import head_to_head_page

import thinwire
from thinwire import catalog
from thinwire.cost import Cost
from thinwire.hooks.attach import attach
from thinwire.hooks.options import MethodOptions, Options
from thinwire.tools.cli.command import load

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CARDS = DOCS / "reference" / "collectives"
CODECS = (DOCS / "reference" / "codecs.md").read_text()
OPTIONS = (DOCS / "reference" / "options.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
PRESENT = [page for page in PAGES if page.stem != "CHANGELOG"]
COLUMNS = 100


def rows(page: str, heading: str) -> list[list[str]]:
    """The body of the table under a line of column names."""
    lines = page[page.index(heading) :].splitlines()[2:]
    table = lines[: next(i for i, line in enumerate([*lines, ""]) if not line)]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table]


EXAMPLES = rows(
    (CARDS / "index.md").read_text(),
    "| method | n | density | P | rounds | bytes |",
)
PACKETS = rows(CODECS, "| codec | size | nnz | bytes |")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What links into a page may point at."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE):
        own = re.search(r"\{ #(\S+) \}", heading)
        words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        found.add(own[1] if own else re.sub(r"[-\s]+", "-", words))
    return found


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
        assert f"### `{codec}`" in CODECS, codec
    for name in known:
        assert f"`{name}`" in CODECS, name
    cards = "".join(page.read_text() for page in CARDS.glob("*.md"))
    for name, method in catalog.METHODS.items():
        assert f"# `{name}`: class `{method.collective.__name__}`" in cards


def test_every_method_and_option_is_listed():
    for name in catalog.METHODS:
        assert f"| `{name}` |" in OPTIONS
    options = {*attach.__annotations__, *Options.__annotations__}
    options -= MethodOptions.__annotations__.keys()
    for option in options - {"model", "method", "name", "options", "return"}:
        assert f"| `{option}` |" in OPTIONS, option


HOPS = [
    row[0].strip("`")
    for row in rows(
        (ROOT / "ARCHITECTURE.md").read_text(), "| hop | thread | what happens |"
    )
]


@pytest.mark.parametrize("hop", HOPS)
def test_every_hop_of_a_bucket_is_a_function(hop):
    names = hop.split(".")
    depth = next(i for i in range(len(names), 0, -1) if _module(names[:i]) is not None)
    found = reduce(getattr, names[depth:], _module(names[:depth]))
    assert callable(found)


def _module(names):
    name = ".".join(("thinwire", *names))
    try:
        return import_module(name) if find_spec(name) else None
    except ModuleNotFoundError:  # what comes before the last name is no package
        return None


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 700


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short(page):
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)
            assert max(len(cell.strip()) for cell in cells) <= COLUMNS, line
        else:
            assert len(line) <= COLUMNS, line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)|^\[\S+\]: (\S+)$", prose(page), re.M):
        target, _, anchor = "".join(link).partition("#")
        if re.match(r"https?:", target):
            continue
        found = page.parent / posixpath.normpath(target) if target else page
        assert found.exists(), link
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_pages_name_exists(page):
    """Paths of files, and modules of ours, wherever they are written."""
    text = re.sub(r"\]\([^)]*\)|^\[\S+\]: .*$", "", page.read_text(), flags=re.M)
    folders = "src|tests|docs|benchmarks|experiments|examples|fuzz|chaos"
    for path in re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]+[\w/](?!\w*<))", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(
        r"python -m (experiments[\w.]*|fuzz[\w.]*|chaos[\w.]*)", text
    ):
        path = ROOT / module.replace(".", "/")
        assert path.exists() or path.with_suffix(".py").exists(), module
    if page.name != "CHANGELOG.md":
        for target in re.findall(r"`make ([a-z][a-z-]*)", text):
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target
        for name in re.findall(r"thinwire\.([A-Z]\w*)", text):
            assert name in thinwire.__all__, name


COMMANDS = {
    "thinwire": lambda: import_module("thinwire.tools.cli.app").app,
    "python -m experiments.train": lambda: (
        import_module("experiments.train.command").app
    ),
}


def typed(text: str) -> list[str]:
    """What a page shows to be typed into a shell: lines of code, and code in prose."""
    blocks = re.findall(r"```\n(.*?)```", text, flags=re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return lines + re.findall(
        r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S)
    )


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.stem != "CHANGELOG"], ids=name_of
)
@pytest.mark.parametrize("program", COMMANDS)
def test_commands_take_the_options_that_pages_give_them(page, program):
    command = None
    for line in typed(page.read_text()):
        given = re.search(rf"(?:^|[\s]){re.escape(program)} ([a-z-].*)", line)
        if given is None:
            continue
        if command is None:
            command = typer.main.get_command(COMMANDS[program]())
        words = given[1].split("#")[0].split(" -- ")[0].split()
        called = command
        while words and words[0] in getattr(called, "commands", {}):
            name = words.pop(0)
            called = load(name) if called is command else called.commands[name]
        named = {option for each in called.params for option in each.opts} | {"--help"}
        assert called is not command or not hasattr(command, "commands"), line
        assert {word for word in words if word.startswith("--")} <= named, line


def test_versions_agree():
    version = thinwire.__version__
    assert f"## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_page_is_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f" {page.relative_to(DOCS)}\n" in site, page


@pytest.mark.parametrize("extra", ["docs", "test-frameworks"])
def test_what_an_extra_needs_is_pinned(extra):
    pinned = (ROOT / "constraints.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for need in project["optional-dependencies"][extra]:
        assert f"{need.partition('[')[0]}==" in pinned


def test_the_chart_and_its_table_are_drawn_from_the_measured_file():
    cells = head_to_head_page.read()
    assert head_to_head_page.CHART.read_text() == head_to_head_page.chart(cells)
    page = head_to_head_page.PAGE.read_text()
    assert head_to_head_page.paged(page, head_to_head_page.table(cells)) == page
