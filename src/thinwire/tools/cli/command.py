"""Commands: each is loaded when it is called, and knows old spellings of options."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Where the commands of a group are, and what they do, in a line.
_COMMANDS = {
    "demo": ("demo", "Train a small model with several methods, on a slow network."),
    "plan": ("plan", "Forecast the time of a training step with each method."),
    "methods": ("methods", "List the methods, and what each would send."),
    "doctor": ("doctor", "Look for what slows ranks down or stops them."),
    "bench": ("bench", "Measure networks, reductions, training and codecs."),
    "report": ("report", "Draw figures of several runs on one page."),
    "lab": ("lab", "Make hosts on slow links on this machine."),
}

_RENAMED = {
    "--size": "--parameters",
    "--ranks": "--workers",
    "--ranks-per-machine": "--workers-per-machine",
    "--chart": "--report",
}
STANDARD_OUTPUT = "-"


class Command(TyperCommand):
    """A command that takes old spellings, which its help does not show."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        taken = {name for option in self.params for name in option.opts}
        return super().parse_args(ctx, list(understood(args, taken)))


class Commands(TyperGroup):
    """Commands by name; listing them loads none, because most of them load torch."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=said) for name, (_, said) in _COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(str(name)), rest


def load(name: str) -> Any:
    """The command or group of a name, with its options."""
    module = import_module(f"thinwire.tools.cli.{_COMMANDS[name][0]}")
    holder = typer.Typer(add_completion=False)
    holder.callback()(lambda: None)
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=name)
    else:
        holder.command(name, cls=Command)(module.command)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]


def understood(args: Sequence[str], taken: set[str]) -> Iterator[str]:
    """Arguments in today's spelling; `--json` without a file means standard output.

    >>> list(understood(["--size=5", "--json", "--ranks", "8"], {"--json"}))
    ['--parameters=5', '--json=-', '--workers', '8']
    """
    for place, given in enumerate(args):
        name, equals, value = given.partition("=")
        now = name if name in taken else _RENAMED.get(name, name)
        following = args[place + 1] if place + 1 < len(args) else "--"
        if given == "--json" and following != "-" and following.startswith("-"):
            yield f"--json={STANDARD_OUTPUT}"
        else:
            yield f"{now}{equals}{value}"
