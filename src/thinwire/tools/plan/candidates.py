"""The choices that a plan compares: methods, densities, codecs and numbers of teams."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.forecast import Forecast, Scenario, forecast
from thinwire.tools.plan.machine import Machine
from thinwire.tools.plan.on_nodes import crossing, forecast_on_nodes


@dataclass(frozen=True, slots=True)
class Candidates:
    """Names as typed; the codec None is the method's own."""

    methods: Sequence[str]
    densities: Sequence[float]
    codecs: Sequence[str | None]

    def choices(self) -> list[Choice]:
        """Each choice once, and always `dense`, which the others are compared with."""
        found = {
            Choice.parse(method, density, codec if _coded(method) else None): None
            for method in ("dense", *self.methods)
            for density in self.densities
            for codec in self.codecs
        }
        return list(found)


def with_teams(choice: Choice, workers: int) -> list[Choice]:
    """The same with every number of teams whose lists have a length that is known.

    >>> [each.label for each in with_teams(Choice.parse("spardl"), 12)]
    ['spardl teams=1', 'spardl teams=2', 'spardl teams=4']
    """
    if choice.method != "spardl" or "teams" in dict(choice.options):
        return [choice]
    powers = (2**i for i in range(workers.bit_length()))
    fitting = [teams for teams in powers if workers % teams == 0]
    return [choice.with_options(teams=teams) for teams in fitting]


def compared(
    choices: Iterable[Choice], scenario: Scenario, machine: Machine
) -> list[Forecast]:
    """The forecasts, the fastest step first; of teams, one and the best number."""
    rows: list[Forecast] = []
    workers, local = scenario.workers, scenario.workers_per_host
    for choice in choices:
        flat = replace(scenario, link=crossing(choice, scenario))
        teams = [
            replace(forecast(each, flat, machine), scenario=scenario)
            for each in with_teams(choice, workers)
        ]
        rows += _first_and_best(teams)
        if 1 < local < workers and choice.method != "dense":
            rows += _first_and_best(
                [
                    forecast_on_nodes(each, scenario, machine)
                    for each in with_teams(choice, workers // local)
                ]
            )
    return sorted(rows, key=lambda each: each.step)


def _first_and_best(rows: list[Forecast]) -> list[Forecast]:
    best = min(rows, key=lambda each: each.step)
    return [best] if best is rows[0] else [rows[0], best]


def _coded(method: str) -> bool:
    return Choice.parse(method).codec is not None
