"""`thinwire lab`: hosts on slow links on this machine, for measurements and tests."""

from typing import Annotated

import typer
from rich.console import Console

from thinwire.errors import LabError
from thinwire.tools.cli import lab_verify
from thinwire.tools.cli.command import Command
from thinwire.tools.cli.options import Json
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.lab import Lab, doctor, network, record
from thinwire.tools.lab.record import Record
from thinwire.tools.lab.shaping import rate_name

app = typer.Typer(
    help="Hosts on slow links on this machine, with real TCP.",
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
    delay: Annotated[
        str,
        typer.Option(help="Of every message, one way, such as 20ms. Needs netem."),
    ] = "0ms",
    loss: Annotated[
        str, typer.Option(help="Of the packets, such as 0.1%. Needs netem.")
    ] = "0%",
    name: Annotated[
        str,
        typer.Option("--lab", help="Its name, if you care.", metavar="NAME"),
    ] = "",
) -> None:
    """Build a lab that stays until it is taken down. Needs no root."""
    built = Lab(hosts, rate, delay=delay, loss=loss, name=name)
    with built:
        built.stay()
    _say(
        f"Lab {built.record.name}: {_hosts(built.record)}.\n"
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
    workers_per_host: Annotated[
        int, typer.Option(help="Processes on each host, which share its link.")
    ] = 1,
    name: Name = "",
) -> None:
    """Run a command on every host, as torchrun would with as many processes on each.

    It ends with the first failure; its exit code is this command's.
    """
    outcome = Lab.find(name).run(command, ranks_per_host=workers_per_host)
    if outcome.failed is not None:
        code = outcome.codes[outcome.failed]
        _complain(f"rank {outcome.failed} failed ({code}); the others were ended")
    raise typer.Exit(outcome.code)


@app.command()
def down(
    *,
    name: Name = "",
    everything: Annotated[bool, typer.Option("--all", help="Every lab.")] = False,
) -> None:
    """Take a lab down. One whose process was killed is gone already."""
    every = [each.name for each in record.find_all() if each.pids]  # not half-built
    for each in every if everything else [name]:
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
            _say(f"without  {check.what} (no --delay, no --loss): {check.remedy}")
        else:
            _say(f"MISSING  {check.what}: {check.remedy}")
    if not all(check.there or check.optional for check in checks):
        raise typer.Exit(1)


@app.command("verify", cls=Command)
def verify_shaping(
    *,
    rate: Annotated[
        str, typer.Option(help="Rates to verify, separated by commas.")
    ] = "100mbit,1gbit",
    hosts: Annotated[int, typer.Option(help="Number of hosts.")] = 2,
    json: Json = None,
) -> None:
    """Measure whether links are as slow as they claim, with messages of all sizes.

    The exit code is 1 if anything is slower or faster than its link.
    """
    if not lab_verify.run(rate.split(","), hosts, Outputs(json)):
        raise typer.Exit(1)


def _hosts(each: Record) -> str:
    rates = dict.fromkeys(map(rate_name, each.rates))
    at = ", ".join(rates) if len(rates) == 1 else ", ".join(map(rate_name, each.rates))
    at += f", {1e3 * each.delay:g} ms late" if each.delay else ""
    at += f", {100 * each.loss:g} % lost" if each.loss else ""
    return f"{each.hosts} host{'s' if each.hosts > 1 else ''} at {at}"


def _condition(each: Record) -> str:
    if not each.pids:
        return "; being built"
    try:
        off = network.hosts_cut_off(each)
    except LabError:  # just taken down
        return ""
    return f"; cut off: {', '.join(map(str, off))}" if off else ""


def _say(text: str) -> None:
    Console().print(text, highlight=False, markup=False, soft_wrap=True)


def _complain(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
