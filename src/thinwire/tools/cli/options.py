"""Options that commands share, and commands that take a dataclass of options."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer

from thinwire import catalog
from thinwire.tools.cli.launch import split

Options = TypeVar("Options")

Density = Annotated[
    float, typer.Option(help="Fraction of the gradient that is kept: 0.01 is 1 %.")
]
Json = Annotated[
    Path | None,
    typer.Option(
        help="Write the figures to this file as JSON; without a file, print them "
        "instead of tables.",
        metavar="[FILE]",
    ),
]
Parameters = Annotated[
    str,
    typer.Option(help="Elements of the gradient, such as 25M.", metavar="NUMBER"),
]
Workers = Annotated[
    int,
    typer.Option(help="Processes to start, where none were started by torchrun."),
]
Rate = Annotated[
    str,
    typer.Option(help="Measure in a lab of this rate, such as 1gbit."),
]
ReportPage = Annotated[
    Path | None,
    typer.Option("--report", help="Also write a page of charts.", metavar="FILE"),
]
Methods = Annotated[
    str,
    typer.Option(
        help="Methods, separated by commas, or 'all'; options after colons, as in "
        "spardl:teams=2."
    ),
]
Peers = Annotated[
    str,
    typer.Option(help="What of PyTorch's to compare with, or 'none'; dense always."),
]
Codecs = Annotated[
    str,
    typer.Option(
        help="Codecs, separated by commas: each method with each of them. The "
        "method's own if not given."
    ),
]


def method_names(text: str) -> tuple[str, ...]:
    """The methods of an option; 'all' names every one."""
    return tuple(catalog.METHODS) if text == "all" else split(text)


def peer_names(text: str) -> tuple[str, ...]:
    """PyTorch's methods of an option; 'none' names none."""
    return () if text == "none" else split(text)


def takes(options: type[Options]) -> Callable[[Callable[[Options], None]], Any]:
    """Make a function of one dataclass a command with an option for each field.

    Fields are annotated as the parameters of a typer command are. The docstring of the
    function is the help text.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Greeting:
    ...     name: str = "you"
    >>> @takes(Greeting)
    ... def greet(options: Greeting) -> None:
    ...     print("hello", options.name)
    >>> greet(name="there")
    hello there
    """
    hints = get_type_hints(options, include_extras=True)
    named = fields(cast(Any, options))
    signature = Signature([_parameter(each, hints[each.name]) for each in named])

    def decorate(function: Callable[[Options], None]) -> Any:
        def command(**values: Any) -> None:
            function(options(**values))

        # What typer reads: the name, the help text and the parameters.
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__dict__["__signature__"] = signature
        return command

    return decorate


def _parameter(field: Field[Any], annotation: Any) -> Parameter:
    default = Parameter.empty if field.default is MISSING else field.default
    return Parameter(
        field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
