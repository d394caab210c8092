"""Draw the README's chart and write the table of whole reductions.

    python benchmarks/head_to_head_page.py

Reads `benchmarks/measured/head_to_head.jsonl`. Writes `docs/assets/reductions.svg`,
and the table between its two marks in `docs/experiments/performance.md`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured" / "head_to_head.jsonl"
CHART = ROOT / "docs" / "assets" / "reductions.svg"
PAGE = ROOT / "docs" / "experiments" / "performance.md"
BEGIN, END = "<!-- reductions: begin -->\n", "<!-- reductions: end -->\n"

NAMES = {
    "torch": "plain DDP",
    "torch-bf16": "PyTorch's bf16 hook",
    "powersgd-1": "PowerSGD, rank 1",
    "powersgd-2": "PowerSGD, rank 2",
    "powersgd-4": "PowerSGD, rank 4",
    "topk": "topk",
    "gtopk": "gtopk",
    "spardl": "spardl",
    "gs-sgd": "gs-sgd",
}
DRAWN = ("torch", "torch-bf16", "powersgd-1", "topk", "gtopk", "spardl")
OURS = ("topk", "gtopk", "spardl", "gs-sgd")
SIZES, DENSITIES = (14_700_000, 1_000_000), (0.01, 0.001)
RATES, RANKS = (1_000_000_000, 100_000_000), (4, 6, 8)

Cell = tuple[int, float, int, int]
"""Elements, density, bits per second, ranks."""

STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de; }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .title { font-weight: 600; font-size: 15px; }
  .faint { fill: #59636e; }
  .theirs { fill: #8c959f; }
  .ours { fill: #0d8a7f; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d; }
    text { fill: #f0f6fc; }
    .faint { fill: #9198a1; }
    .theirs { fill: #6e7681; }
    .ours { fill: #2fc4b2; }
  }
"""


def read(file: Path = MEASURED) -> dict[Cell, dict[str, float]]:
    """Median seconds by cell and method."""
    every = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        (each["size"], each["density"], each["rate"], each["ranks"]): {
            row["label"]: row["seconds"] for row in each["rows"]
        }
        for each in every
    }


def chart(cells: dict[Cell, dict[str, float]]) -> str:
    """One panel for 4 ranks, one for 8: 14.7 M elements, 1 %, 1 Gbit/s."""
    width, height = 760, 262
    shown = {ranks: cells[SIZES[0], 0.01, RATES[0], ranks] for ranks in (4, 8)}
    longest = max(seconds["torch"] for seconds in shown.values())
    panels = [
        panel(f"{ranks} workers", seconds, 126 / longest, 20 + 368 * number)
        for number, (ranks, seconds) in enumerate(shown.items())
    ]
    label = "Time of one reduction at 1 Gbit/s: spardl is fastest, plain DDP slowest"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{label}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" '
            f'height="{height - 1}" rx="6"/>',
            text(20, 30, "Time of one whole reduction, milliseconds", "title"),
            *(line for lines in panels for line in lines),
            text(20, 246, "14.7 M float32, 1 % kept, links of 1 Gbit/s", "faint"),
            "</svg>\n",
        ]
    )


def panel(
    title: str, seconds: dict[str, float], scale: float, left: int
) -> Iterator[str]:
    """Horizontal bars, one for each method, with the times written beside them."""
    names = 146
    yield text(left, 58, title, "faint")
    for number, method in enumerate(DRAWN):
        top = 68 + 27 * number
        bar = round(scale * seconds[method], 1)
        kind = "ours" if method in OURS else "theirs"
        times = seconds["torch"] / seconds[method]
        note = "" if method == "torch" else f"  ({times:.2g} x)"
        yield text(left + names - 8, top + 15, NAMES[method], anchor="end")
        yield (
            f'<rect class="{kind}" x="{left + names}" y="{top}" width="{bar}" '
            'height="20" rx="2"/>'
        )
        shown = f"{1e3 * seconds[method]:.0f}{note}"
        yield text(left + names + bar + 6, top + 15, shown)


def text(x: float, y: int, words: str, kind: str = "", anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y}" text-anchor="{anchor}"{style}>{words}</text>'


def table(cells: dict[Cell, dict[str, float]]) -> str:
    """Milliseconds on 4, 6 and 8 ranks, by method, size, density and rate."""
    heads = [f"{rate}, {d}" for rate in ("1 Gbit/s", "100 Mbit/s") for d in DENSITIES]
    lines = [
        "| elements | method | " + " | ".join(map(percent, heads)) + " |",
        "| --- | --- |" + " ---: |" * len(heads),
    ]
    for size in SIZES:
        for method, name in NAMES.items():
            row = [f"{size / 1e6:g} M", name]
            for rate in RATES:
                for density in DENSITIES:
                    held = [cells[size, density, rate, ranks] for ranks in RANKS]
                    row.append(" / ".join(milliseconds(each[method]) for each in held))
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def percent(head: str) -> str:
    rate, density = head.split(", ")
    return f"{rate}, {float(density):.1%}".replace(".0%", " %").replace("1%", "1 %")


def milliseconds(seconds: float) -> str:
    held = 1e3 * seconds
    return f"{held:,.0f}" if held >= 100 else f"{held:.1f}"


def paged(page: str, rows: str) -> str:
    """The page with these rows between its marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{rows}\n{END}{after}"


if __name__ == "__main__":
    measured = read()
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(chart(measured))
    if PAGE.exists() and BEGIN in PAGE.read_text():
        PAGE.write_text(paged(PAGE.read_text(), table(measured)))
