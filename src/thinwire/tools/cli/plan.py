"""`thinwire plan`: what a step would take, before anything is rented or rewritten."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from thinwire import profile
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.quantities import parse_duration, parse_rate
from thinwire.tools.cli.formatting import parse_count
from thinwire.tools.cli.plan_report import Report, draw, shown
from thinwire.tools.plan import machine
from thinwire.tools.plan.candidates import Candidates, compared, with_teams
from thinwire.tools.plan.forecast import Scenario, named
from thinwire.tools.plan.model import count_parameters

DEFAULT_METHODS = "dense,bf16,topk,gtopk,spardl,gs-sgd"
CHARTS = (".svg", ".html")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options as they were typed."""

    model: str | None
    parameters: str | None
    workers: int
    link: str
    backward: str
    methods: str
    density: str
    codecs: str | None
    ranks_per_machine: int | None
    cores: int | None
    bucket_mb: float

    def scenario(self) -> Scenario:
        """What is to be forecast, or an error that names the option."""
        found = self._profile()
        ranks_per_machine, cores = self._sharing(found)
        if self.bucket_mb <= 0:
            raise ConfigError(
                f"bucket-mb is {self.bucket_mb}: give what DDP's bucket_cap_mb is"
            )
        return Scenario(
            self._parameters(),
            self.workers,
            self._link() if found is None else found.link,
            parse_duration(self.backward, "backward"),
            rounds=None if found is None else found.rounds,
            ranks_per_machine=ranks_per_machine,
            cores=cores,
            bucket=round(self.bucket_mb * (1 << 20)),
        )

    def candidates(self) -> Candidates:
        """What is to be compared."""
        codecs = [None] if self.codecs is None else self.codecs.split(",")
        return Candidates(
            [each.strip() for each in self.methods.split(",")],
            [_density(each) for each in self.density.split(",")],
            [None if each is None else each.strip() for each in codecs],
        )

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
            ranks if self.ranks_per_machine is None else self.ranks_per_machine,
            cores if self.cores is None else self.cores,
        )


def run(
    wanted: Wanted,
    console: Console,
    *,
    recalibrate: bool,
    file: Path | None,
    chart: Path | None,
) -> None:
    """Forecast, show a table that fits 80 columns, write the files that are wanted."""
    _check_files(file, chart)
    scenario, candidates = wanted.scenario(), wanted.candidates()
    choices = candidates.choices()
    for choice in choices:
        choice.check(scenario.workers)
    tried = [each for one in choices for each in with_teams(one, scenario.workers)]
    with console.status("measuring this machine, once") as status:
        speeds = machine.known(
            tried,
            sharing=scenario.sharing,
            anew=recalibrate,
            tell=lambda what: status.update(f"measuring this machine, once: {what}"),
        )
    report = Report(scenario, compared(choices, scenario, speeds))
    console.print(shown(report))
    if file is not None:
        file.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
        console.print(f"Figures written to {file}", highlight=False)
    if chart is not None:
        draw(report, chart)
        console.print(f"Chart written to {chart}", highlight=False)


def _check_files(file: Path | None, chart: Path | None) -> None:
    for wanted in (file, chart):
        if wanted is not None and not wanted.parent.is_dir():
            raise ConfigError(
                f"cannot write {wanted}: there is no folder {wanted.parent}"
            )
    if chart is not None and chart.suffix not in CHARTS:
        raise ConfigError(f"chart is {chart}: give a file that ends in .svg or .html")


def _density(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(
            f"density is {text!r}: give fractions, such as 0.01,0.001"
        ) from error
