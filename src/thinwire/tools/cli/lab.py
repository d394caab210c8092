"""`thinwire lab`: hosts on slow links on this machine, for measurements and tests."""

from typing import Annotated

import typer
from rich.console import Console

from thinwire.errors import LabError
from thinwire.tools.cli import lab_verify
from thinwire.tools.lab import Lab, doctor, lab, network, record
from thinwire.tools.lab.record import Record
from thinwire.tools.lab.shaping import rate_name

app = typer.Typer(
    help="Hosts on slow links on this machine, with real TCP. Needs root.",
    no_args_is_help=True,
)

Name = Annotated[
    str,
    typer.Option("--lab", help="Which lab, where several are up.", metavar="NAME"),
]
Host = Annotated[int, typer.Argument(help="Its number, from 0.", metavar="HOST")]


@app.command()
def up(
    *,
    hosts: Annotated[int, typer.Option(help="Number of hosts.")] = 4,
    rate: Annotated[
        str,
        typer.Option(
            help="Of every link, both ways, such as 100mbit; separated by commas, one "
            "for each host."
        ),
    ] = "1gbit",
    name: Annotated[
        str,
        typer.Option("--lab", help="Its name, if you care.", metavar="NAME"),
    ] = "",
) -> None:
    """Build a lab that stays until it is taken down."""
    built = Lab(hosts, rate, name=name)
    built.up()
    built.stay()
    _say(
        f"Lab {built.record.name}: {_hosts(built.record)}. Latency is not shaped.\n"
        "Run on every host:  thinwire lab run -- python script.py\n"
        "Take it down:       thinwire lab down"
    )


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(
    command: Annotated[
        list[str], typer.Argument(help="What to run on each, after --.")
    ],
    *,
    name: Name = "",
) -> None:
    """Run a command on every host, as torchrun would with one process on each.

    It ends with the first failure; its exit code is this command's.
    """
    outcome = Lab.find(name).run(command)
    if outcome.failed is not None:
        code = outcome.codes[outcome.failed]
        _complain(f"host {outcome.failed} failed ({code}); the others were ended")
    raise typer.Exit(outcome.code)


@app.command()
def down(
    *,
    name: Name = "",
    everything: Annotated[bool, typer.Option("--all", help="Every lab.")] = False,
) -> None:
    """Take a lab down, and remove what killed ones left behind."""
    swept = lab.sweep()
    for each in swept:
        _say(f"Lab {each}: its process is dead; removed what it left")
    if everything:
        chosen = [each.name for each in record.find_all()]
        for stray in lab.sweep_strays():
            _say(f"Namespace {stray}: removed; there was no record of its lab")
    elif swept and (name in swept or not (name or record.find_all())):
        return
    else:
        chosen = [name]
    for each in chosen:
        found = Lab.find(each)
        found.down()
        _say(f"Lab {found.record.name}: down")


@app.command("list")
def show_all() -> None:
    """List the labs that are up."""
    found = record.find_all()
    if not found:
        _say("No lab is up. Start one: thinwire lab up --hosts 4")
    for each in found:
        _say(f"{each.name}: {_hosts(each)}{_condition(each)}")


@app.command()
def cut(host: Host, *, name: Name = "") -> None:
    """Drop all messages from and to a host, without closing its connections."""
    Lab.find(name).cut(host)


@app.command()
def heal(host: Host, *, name: Name = "") -> None:
    """Connect a host again."""
    Lab.find(name).heal(host)


@app.command("doctor")
def show_needs() -> None:
    """Say what a lab needs that this machine does not have, and how to get it."""
    checks = doctor.examine()
    for check in checks:
        if check.there:
            _say(f"ok       {check.what}")
        elif check.optional:
            _say(f"without  {check.what} (labs do not shape latency): {check.remedy}")
        else:
            _say(f"MISSING  {check.what}: {check.remedy}")
    if not all(check.there or check.optional for check in checks):
        raise typer.Exit(1)


@app.command("verify")
def verify_shaping(
    *,
    rate: Annotated[
        str, typer.Option(help="Rates to verify, separated by commas.")
    ] = "100mbit,1gbit",
    hosts: Annotated[int, typer.Option(help="Number of hosts.")] = 2,
    json: Annotated[bool, typer.Option(help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure whether links are as slow as they claim, with messages of all sizes.

    The exit code is 1 if anything is slower or faster than its link.
    """
    if not lab_verify.run(rate.split(","), hosts, Console(), json=json):
        raise typer.Exit(1)


def _hosts(each: Record) -> str:
    rates = dict.fromkeys(map(rate_name, each.rates))
    at = ", ".join(rates) if len(rates) == 1 else ", ".join(map(rate_name, each.rates))
    return f"{each.hosts} host{'s' if each.hosts > 1 else ''} at {at}"


def _condition(each: Record) -> str:
    if each.abandoned:
        return "; its process is dead: thinwire lab down removes what is left"
    try:
        off = network.hosts_cut_off(each)
    except LabError:  # not root, or just being built
        return ""
    return f"; cut off: {', '.join(map(str, off))}" if off else ""


def _say(text: str) -> None:
    Console().print(text, highlight=False, markup=False, soft_wrap=True)


def _complain(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
