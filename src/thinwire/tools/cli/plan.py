"""`thinwire plan`: forecasts the time of a step with each method."""

import os
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.tools import profile
from thinwire.tools.cli.options import Json, ReportPage, takes
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.cli.plan_report import Report, shown
from thinwire.tools.cli.progress import telling
from thinwire.tools.plan import machine
from thinwire.tools.plan.candidates import Candidates, compared, with_teams
from thinwire.tools.plan.forecast import Scenario, named
from thinwire.tools.plan.model import count_parameters
from thinwire.tools.quantities import parse_count, parse_duration, parse_rate
from thinwire.tools.report.document import draw

# With spaces, where help can wrap them.
DEFAULT_METHODS = "dense, bf16, topk, gtopk, spardl, gs-sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of the command."""

    model: Annotated[
        str | None,
        typer.Option(
            help="A function that returns your model: models.py:build.",
            metavar="PATH:FUNCTION",
        ),
    ] = None
    parameters: Annotated[
        str | None,
        typer.Option(help="Or how many parameters it has: 100M.", metavar="NUMBER"),
    ] = None
    workers: Annotated[int, typer.Option(help="Number of workers.")]
    link: Annotated[
        str,
        typer.Option(
            help="Of each worker: a rate and a latency, or a profile (.json) from "
            "thinwire bench net.",
            metavar="1gbit,100us",
        ),
    ]
    backward: Annotated[
        str,
        typer.Option(
            help="How long a backward pass takes alone; no time if not given.",
            metavar="0.2s",
            show_default=False,
        ),
    ] = ""
    methods: Annotated[
        str,
        typer.Option(
            help="Methods, separated by commas; options after a colon, as in "
            "spardl:teams=2, gtopk:variant=tree."
        ),
    ] = DEFAULT_METHODS
    density: Annotated[
        str, typer.Option(help="Fractions that are kept, separated by commas.")
    ] = "0.01,0.001"
    codecs: Annotated[
        str | None,
        typer.Option(
            help="Codecs of lists, separated by commas, such as rice+log4; each "
            "method's own if not given.",
            show_default=False,
        ),
    ] = None
    workers_per_machine: Annotated[
        int | None,
        typer.Option(help="How many workers share a machine's cores."),
    ] = None
    cores: Annotated[
        int | None,
        typer.Option(help="Cores of such a machine; as many as here if not given."),
    ] = None
    workers_per_host: Annotated[
        int,
        typer.Option(
            help="How many workers share a host's link; forecasts `nodes` as well."
        ),
    ] = 1
    bucket_mb: Annotated[float, typer.Option(help="DDP's bucket_cap_mb.")] = 25.0
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Measure this machine's speed anew.")
    ] = False
    json: Json = None
    page: ReportPage = None

    def scenario(self) -> Scenario:
        """What is to be forecast, or an error that names the option."""
        found = self._profile()
        ranks_per_machine, cores = self._sharing(found)
        nbytes = self.bucket_mb * (1 << 20)
        if not 1 <= nbytes < inf:
            raise ConfigError(
                f"bucket-mb is {self.bucket_mb}: give what DDP's bucket_cap_mb is"
            )
        return Scenario(
            self._parameters(),
            self.workers,
            self._link() if found is None else found.link,
            parse_duration(self.backward, "backward") if self.backward else 0.0,
            rounds=None if found is None else found.rounds,
            ranks_per_machine=ranks_per_machine,
            cores=cores,
            bucket=round(nbytes),
            workers_per_host=self.workers_per_host,
        )

    def candidates(self) -> Candidates:
        """What is to be compared."""
        codecs = [None] if self.codecs is None else self.codecs.split(",")
        return Candidates(
            [each.strip() for each in self.methods.split(",")],
            [_density(each) for each in self.density.split(",")],
            [None if each is None else each.strip() for each in codecs],
        )

    def assumed(self) -> str:
        """What was not given and taken to be nothing, in words.

        >>> PlanOptions(workers=8, link="1gbit").assumed()
        'with no latency (--link 1gbit,100us) and no backward pass (--backward 0.2s)'
        >>> PlanOptions(workers=8, link="1gbit,100us", backward="0s").assumed()
        ''
        """
        missing = []
        if self._profile() is None and "," not in self.link:
            missing.append(f"no latency (--link {self.link},100us)")
        if not self.backward:
            missing.append("no backward pass (--backward 0.2s)")
        return f"with {' and '.join(missing)}" if missing else ""

    def _parameters(self) -> int:
        if (self.model is None) == (self.parameters is None):
            raise ConfigError(
                "say how large the gradient is: --model models.py:build or "
                "--parameters 100e6, one of them"
            )
        if self.model is not None:
            return count_parameters(self.model)
        return parse_count(self.parameters or "", "parameters")

    def _profile(self) -> profile.Profile | None:
        path = Path(self.link)
        measured = path.suffix == ".json" or path.is_file()
        return profile.read(path) if measured else None

    def _link(self) -> Link:
        rate, _, latency = self.link.partition(",")
        seconds = parse_duration(latency, "latency of the link") if latency else 0.0
        return named(Link(seconds, parse_rate(rate) / 8))

    def _sharing(self, found: profile.Profile | None) -> tuple[int, int]:
        """How many ranks share how many cores: as said, as measured, or as here."""
        ranks = 1 if found is None else found.ranks_per_machine
        cores = (os.cpu_count() or 1) if found is None else found.cores
        return (
            ranks if self.workers_per_machine is None else self.workers_per_machine,
            cores if self.cores is None else self.cores,
        )


@takes(PlanOptions)
def command(options: PlanOptions) -> None:
    """Forecast the time of a training step with each method, before you try any.

    It may well say that dense is best.
    """
    outputs = Outputs(options.json, options.page)
    outputs.check()
    report = _forecast(options)
    outputs.console.print(shown(report))
    figures = report.as_dict()
    outputs.write(figures, lambda: draw([figures]))


def _forecast(options: PlanOptions) -> Report:
    scenario, candidates = options.scenario(), options.candidates()
    choices = candidates.choices()
    for choice in choices:
        choice.check(scenario.workers)
    tried = [each for one in choices for each in with_teams(one, scenario.workers)]
    with telling("measuring this machine, once") as tell:
        speeds = machine.known(
            tried, sharing=scenario.sharing, anew=options.recalibrate, tell=tell
        )
    return Report(scenario, compared(choices, scenario, speeds), options.assumed())


def _density(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(
            f"density is {text!r}: give fractions, such as 0.01,0.001"
        ) from error
