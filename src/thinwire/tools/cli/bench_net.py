"""`thinwire bench net`: what the network between these ranks does, as a profile."""

from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table

from thinwire.tools.bench import net
from thinwire.tools.cli import formatting
from thinwire.tools.cli.launch import Place, run
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.profile import Profile, typed
from thinwire.tools.quantities import rate_text
from thinwire.tools.report import files

_MOST_SHOWN = 8  # ranks whose pairs fit a terminal


def measure(where: Place, file: Path, outputs: Outputs) -> None:
    """Measure, show, save."""
    files.check_writable(file)
    outputs.check()
    settings = net.Settings(shaped=where.shaped)
    found = run(where, "net", asdict(settings))
    if found is None:
        return
    profile = Profile(**typed(found))
    profile.write(file)
    console = outputs.console
    console.print(_table(profile))
    if profile.ranks <= _MOST_SHOWN:
        console.print(_pairs(profile))
    for note in _notes(profile, where):
        console.print(note, style="dim", highlight=False, markup=False)
    console.print(f"Profile written to {file}", highlight=False, soft_wrap=True)
    outputs.write(found)


def rate(nbytes: float) -> str:
    """Bytes per second as networks are named.

    >>> rate(125e6), rate(12.5e6)
    ('1 Gbit/s', '100 Mbit/s')
    """
    return rate_text(8 * nbytes)


def _table(profile: Profile) -> Table:
    spread = [v for row in profile.bandwidths for v in row if v]
    table = Table(
        title=f"{profile.ranks} ranks on {profile.hosts} host"
        f"{'s' if profile.hosts > 1 else ''}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        show_header=False,
    )
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    latency = formatting.milliseconds(profile.latency)
    table.add_row("latency", latency, "of a small message, one way; median pair")
    pairs = f"one way; the slowest {rate(min(spread))}, the fastest {rate(max(spread))}"
    table.add_row("a pair alone", rate(profile.pair), pairs)
    table.add_row("all at once", rate(profile.together), "each way, the slowest rank")
    table.add_row("one flow", rate(profile.flow), "a single connection")
    flows = "several at once"
    if profile.hosts > 1:  # else it is a processor's doing
        flows = "more: capped per flow" if profile.capped else "no cap per flow"
    table.add_row("several flows", rate(profile.flows), flows)
    return table


def _pairs(profile: Profile) -> Table:
    table = Table(
        title="Pairs: Mbit/s from row to column",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )
    table.add_column("rank", style="bold")
    for rank in range(profile.ranks):
        table.add_column(str(rank), justify="right")
    for rank, row in enumerate(profile.bandwidths):
        cells = [f"{8e-6 * each:.0f}" if each else "-" for each in row]
        table.add_row(str(rank), *cells)
    return table


def _notes(profile: Profile, where: Place) -> list[str]:
    notes = []
    if where.kind == "loopback":
        notes.append(
            "This link is not shaped: local processes over loopback, which is no slow "
            "network. On your own: torchrun ... --no-python thinwire bench net; for a "
            "slow network on this machine: thinwire lab up --rate 1gbit, then "
            "thinwire lab run -- thinwire bench net"
        )
    if where.shaped:
        notes.append(f"Links of a lab, shaped to {where.rate}. {where.latency}")
    if profile.ranks_per_machine > 1:
        notes.append(
            f"{profile.ranks_per_machine} ranks share a machine's {profile.cores} "
            "processors: what is measured all at once may be theirs, not the network's."
        )
    return notes
