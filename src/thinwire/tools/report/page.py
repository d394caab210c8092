"""The parts of a page: its style, verdicts, sections and tables."""

from collections.abc import Sequence
from html import escape

from thinwire.tools.report.style import GROUPS, variables

_HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)

_FILLS = "".join(f".g{n}{{background:var(--g{n})}}" for n in range(GROUPS))

_STYLE = f"""
:root{{color-scheme:light dark}}
{variables(":root")}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}
main{{max-width:64rem;margin:0 auto;padding:1rem}}
h1{{font-size:1rem;font-weight:600;color:var(--soft);margin:0}}
h2{{font-size:1.15rem;margin:2.5rem 0 .25rem}}
h3{{font-size:1rem;margin:0 0 .5rem}}
p{{margin:.5rem 0}}
.note,figcaption,footer{{color:var(--soft);font-size:.875rem}}
figcaption{{margin-top:.75rem}}
figure{{background:var(--card);border-radius:.6rem;margin:1rem 0;padding:1rem}}
.verdict{{background:var(--card);border-left:.4rem solid var(--theirs);
border-radius:.6rem;margin:1rem 0;padding:1rem 1.25rem}}
.verdict.use{{border-color:var(--ours)}}
.verdict b{{display:block;font-size:1.6rem;line-height:1.25}}
.verdict.use b{{color:var(--ours)}}
.verdict ul{{list-style:none;margin:.75rem 0 0;padding:0;display:flex;flex-wrap:wrap;
gap:.5rem 2.5rem}}
.verdict li{{font-size:.875rem;color:var(--soft)}}
.verdict strong{{display:block;font-size:1.35rem;line-height:1.2;color:var(--ink)}}
.bars{{font-size:.875rem}}
.row,.top{{display:grid;gap:0 .75rem;align-items:center;position:relative;
grid-template-columns:14.5rem 1fr 5rem}}
.two .row,.two .top{{grid-template-columns:14.5rem 3fr 5rem 2fr 5rem}}
.top{{color:var(--soft);padding-bottom:.35rem}}
.top span:nth-child(2n){{grid-column:span 2}}
.row{{padding:.3rem 0;border-radius:.3rem;outline-offset:2px}}
.row:hover,.row:focus{{background:var(--page)}}
.ours .name{{color:var(--ours);font-weight:600}}
.bar{{position:relative;display:flex;height:1rem}}
.bar i{{display:block;height:100%;min-width:1px}}
.bar i:first-of-type{{border-radius:2px 0 0 2px}}
.bar i:last-of-type{{border-radius:0 2px 2px 0}}
.ours .fill{{background:var(--ours)}}.theirs .fill{{background:var(--theirs)}}
.bar u{{position:absolute;top:calc(50% - 1px);height:2px;background:var(--ink);
box-shadow:0 0 0 1px var(--card)}}
.num{{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}}
.tip{{display:none;position:absolute;z-index:1;top:100%;left:0;right:0;
background:var(--ink);color:var(--page);border-radius:.4rem;padding:.4rem .7rem}}
.row:hover .tip,.row:focus .tip{{display:block}}
.groups{{list-style:none;margin:0 0 .75rem;padding:0;display:flex;flex-wrap:wrap;
gap:.1rem 1.25rem;font-size:.875rem}}
.groups i{{display:inline-block;width:.8em;height:.8em;margin-right:.4em;
border-radius:2px}}
{_FILLS}
svg{{display:block;width:100%;height:auto}}
figure .curves .ground{{fill:none}}
.narrow{{display:none}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;font-size:.875rem;width:100%}}
th,td{{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--rule);
overflow-wrap:normal;white-space:nowrap;font-variant-numeric:tabular-nums}}
th:first-child{{text-align:left;white-space:nowrap;padding-left:0}}
thead th{{white-space:normal;color:var(--soft);font-weight:400;vertical-align:bottom}}
@media(max-width:46rem){{
.row,.two .row{{grid-template-columns:1fr 4.75rem;padding:.45rem 0}}
.name{{grid-column:1/-1}}.top{{display:none}}
.two .row .bar:nth-of-type(n+4){{height:.5rem}}
.wide{{display:none}}.narrow{{display:block}}
}}"""


def document(title: str, body: str, footer: Sequence[str] = ()) -> str:
    """A whole page."""
    said = "<br>".join(map(escape, footer))
    return (
        f"{_HEAD}<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}"
        f"<footer><p>{said}</p></footer></main></body></html>\n"
    )


def verdict(
    headline: str,
    figures: Sequence[tuple[str, str]],
    why: str = "",
    *,
    use: bool,
) -> str:
    """What to do, in large letters: to use something, or to leave all as it is.

    `figures` are numbers, each with what it is of.
    """
    items = "".join(
        f"<li><strong>{escape(number)}</strong>{escape(what)}</li>"
        for number, what in figures
    )
    return (
        f'<div class="verdict{" use" * use}"><b>{escape(headline)}</b>'
        f"{f'<ul>{items}</ul>' if items else ''}"
        f"{f'<p>{escape(why)}</p>' if why else ''}</div>"
    )


def section(title: str, body: str, said: str = "") -> str:
    """A card with a heading, and a word about it."""
    caption = f"<figcaption>{escape(said)}</figcaption>" if said else ""
    return f"<figure><h3>{escape(title)}</h3>{body}{caption}</figure>"


def note(text: str) -> str:
    """A paragraph in small letters."""
    return f'<p class="note">{escape(text)}</p>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Rows under their heads; it scrolls by itself where it is too wide."""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(_line(row) for row in rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Figures"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
        f'<p class="note">{escape(caption)}</p>'
    )


def _line(row: Sequence[str]) -> str:
    name, *cells = row
    data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name)}</th>{data}</tr>'
