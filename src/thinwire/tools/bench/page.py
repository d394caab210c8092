"""The parts of a report's page: its style, sections, tables and legends."""

from collections.abc import Mapping, Sequence
from html import escape

# Of phases and lines: each at least 3 to 1 against the page, in both schemes.
_LIGHT = (
    *("#2563c9", "#1b7f79", "#a34700", "#7a3fb5", "#b3261e", "#4d6b00", "#00728f"),
    *("#8a6d00", "#5c6470", "#b0307e", "#3f51b5", "#6b4f3a"),
)
_DARK = (
    *("#7aa7ff", "#4fc3b8", "#ff9e57", "#c39bf0", "#ff8a80", "#a8cc52", "#58c4e0"),
    *("#e0c04c", "#a3acb8", "#f48cc6", "#9fa8ff", "#cfae94"),
)


def _colours(names: Sequence[str]) -> str:
    return "".join(f"--k{place}:{name};" for place, name in enumerate(names))


_CLASSES = "".join(
    f".c{place}{{fill:var(--k{place});background:var(--k{place})}}"
    f".l{place}{{stroke:var(--k{place});background:var(--k{place})}}"
    for place in range(len(_LIGHT))
)

STYLE = f"""
:root{{color-scheme:light dark;--page:#fff;--card:#f4f5f7;--ink:#16181d;--soft:#4a505a;
--rule:#c9cdd4;{_colours(_LIGHT)}}}
@media(prefers-color-scheme:dark){{:root{{--page:#14161a;--card:#1d2026;--ink:#eceef2;
--soft:#b3bac5;--rule:#444b57;{_colours(_DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}
main{{max-width:60rem;margin:0 auto;padding:1rem}}
h1{{font-size:1.5rem;margin:.5rem 0}}h2{{font-size:1.2rem;margin:2rem 0 .5rem}}
h3{{font-size:1rem;margin:0 0 .5rem}}
p{{margin:.5rem 0}}
.note,figcaption,footer,caption{{color:var(--soft);font-size:.875rem}}
.verdict{{font-weight:600}}
figure{{background:var(--card);border-radius:.5rem;margin:1rem 0;padding:.75rem}}
svg{{display:block;width:100%;max-width:28rem;height:auto}}
svg text{{fill:var(--ink);font:13px system-ui,sans-serif}}
svg .end{{text-anchor:end}}svg .middle{{text-anchor:middle}}
svg .grid{{stroke:var(--rule);stroke-width:.5}}
svg .whisker{{stroke:var(--ink);stroke-width:2}}
svg .line{{fill:none;stroke-width:2;background:none}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;font-size:.875rem}}caption{{text-align:left}}
th,td{{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);
overflow-wrap:normal}}
th:first-child{{text-align:left;white-space:nowrap}}
ul{{list-style:none;margin:.5rem 0 0;padding:0;display:flex;flex-wrap:wrap;
gap:.1rem 1rem;font-size:.875rem}}
li b{{display:inline-block;min-width:1.3em}}
i{{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}}
{_CLASSES}"""


def section(title: str, body: str, said: str = "", *, level: int = 3) -> str:
    """A figure with a heading, and a word about it."""
    caption = f"<figcaption>{escape(said)}</figcaption>" if said else ""
    heading = f"<h{level}>{escape(title)}</h{level}>"
    return f"<figure>{heading}{body}{caption}</figure>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Rows under their heads; it scrolls by itself where it is too wide."""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(_line(row) for row in rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Figures"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def legend(names: Mapping[str, str], *, swatches: bool = False) -> str:
    """What the colours, or the numbers, of a chart stand for."""
    items = [
        f'<li><i class="{escape(key)}"></i>{escape(name)}</li>'
        if swatches
        else f"<li><b>{escape(key)}</b> {escape(name)}</li>"
        for key, name in names.items()
    ]
    return f"<ul>{''.join(items)}</ul>"


def _line(row: Sequence[str]) -> str:
    name, *cells = row
    data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name)}</th>{data}</tr>'
