"""`thinwire doctor`: what slows these ranks down or stops them, with remedies."""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from thinwire.errors import ConfigError
from thinwire.tools.cli import formatting
from thinwire.tools.cli.bench_net import rate
from thinwire.tools.cli.options import Json
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.doctor import between_ranks, of_a_rank
from thinwire.tools.doctor.facts import Facts
from thinwire.tools.doctor.findings import Findings, examined
from thinwire.tools.doctor.interface import Interface
from thinwire.tools.doctor.links import Link, worst
from thinwire.tools.doctor.problem import Problem, merged, ranges
from thinwire.tools.quantities import rate_text

_MOST_SHOWN = 28  # links: all of 8 ranks


def command(
    *,
    wait: Annotated[
        float, typer.Option(help="Seconds that ranks wait for each other.")
    ] = 30.0,
    json: Json = None,
) -> None:
    """Look for what slows ranks down or stops them, and say what to do about it.

    Start it on every rank, with torchrun or thinwire lab run; alone it looks at this
    host only. The exit code is 1 if there is a problem.
    """
    if not 0 < wait < float("inf"):
        raise ConfigError(f"wait is {wait}: give seconds, above 0")
    outputs = Outputs(json)
    outputs.check()
    with examined(wait) as found:
        problems = _problems(found)
        if found.tells:
            _show(found, problems, outputs.console)
            outputs.write(_as_dict(found, problems))
    if problems:
        raise typer.Exit(1)


def _problems(found: Findings) -> list[Problem]:
    alone = (
        each
        for rank, its in found.facts.items()
        for each in of_a_rank.problems(rank, its)
    )
    return [*merged(alone), *between_ranks.problems(found)]


def _as_dict(found: Findings, problems: list[Problem]) -> dict[str, Any]:
    return {
        "ranks": found.size,
        "missing": found.missing,
        "facts": {rank: asdict(each) for rank, each in found.facts.items()},
        "links": [asdict(link) for link in found.links],
        "problems": [asdict(problem) for problem in problems],
    }


def _show(found: Findings, problems: list[Problem], console: Console) -> None:
    """Tables that fit 80 columns; then the problems."""
    console.print(_ranks(found))
    software: dict[str, list[int]] = {}
    for rank, each in found.facts.items():
        software.setdefault(_software(each), []).append(rank)
    for lines, its in software.items():
        where = f"{ranges(its)}:\n" if len(software) > 1 else ""
        console.print(where + lines, highlight=False, markup=False)
    if found.links:
        console.print(_links(found.links))
    if found.size == 1:
        console.print(
            "One rank: to look at the network, start this on every host with torchrun.",
            highlight=False,
        )
    for problem in problems:
        where = f"{ranges(problem.ranks)}: " if problem.ranks and found.size > 1 else ""
        console.print(
            f"\nPROBLEM  {where}{problem.what}", highlight=False, markup=False
        )
        console.print(f"  remedy: {problem.remedy}", highlight=False, markup=False)
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    console.print(f"\n{count if problems else 'No problem'} found.", highlight=False)


def _ranks(found: Findings) -> Table:
    hosts = len({each.network for each in found.facts.values()})
    absent = [rank for rank in found.missing if rank not in found.facts]
    came = f"{len(found.facts)} of " if absent else ""
    title = f"{came}{found.size} rank{'s' * (found.size > 1)}, {hosts} host"
    headings = ("rank", "host", "Gloo uses", "address", "speed", "threads", "cores")
    table = _table(title + "s" * (hosts > 1), headings)
    for rank, each in found.facts.items():
        used = each.interface
        threads = (str(each.threads), str(len(each.cores)))
        table.add_row(
            str(rank), each.host.name, _name(used), used.address, _speed(used), *threads
        )
    for rank in absent:
        table.add_row(str(rank), "MISSING")
    return table


def _links(links: list[Link]) -> Table:
    shown = sorted(
        worst(links, _MOST_SHOWN), key=lambda link: (link.first, link.second)
    )
    title = "Links" + f": the {len(shown)} slowest of {len(links)}" * (
        len(shown) < len(links)
    )
    table = _table(title, ("ranks", "latency", "there", "back", "clock ahead"))
    for link in shown:
        pair = f"{link.first}-{link.second}"
        if link.why:
            table.add_row(pair, "FAILED")
            continue
        clock = f"{1e3 * link.ahead:+.2f} ± {formatting.milliseconds(link.unsure)}"
        rates = (rate(link.there), rate(link.back))
        table.add_row(pair, formatting.milliseconds(link.latency), *rates, clock)
    return table


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _name(used: Interface) -> str:
    return f"{used.name or 'unknown'} ({'set' if used.named else 'host name'})"


def _speed(used: Interface) -> str:
    return rate_text(used.speed) if used.speed else "not known"


def _software(facts: Facts) -> str:
    versions = ", ".join(f"{name} {each}" for name, each in facts.versions.items())
    ipv6 = "yes" if facts.ipv6 else "no"
    return (
        f"{versions}\n"
        f"huge pages: {facts.huge_pages or 'not known'}; IPv6 loopback: {ipv6}\n"
        f"kernels are kept in {facts.cache.folder or '-'}"
    )
