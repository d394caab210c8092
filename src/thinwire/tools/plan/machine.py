"""This machine's speed: measured once, kept in the user's cache directory."""

import json
import os
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from thinwire.cost import Rounds
from thinwire.tools.plan import calibrate, neighbours, processes
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.moves import moves
from thinwire.tools.plan.processes import Pace
from thinwire.tools.plan.processor import Speed, features
from thinwire.version import __version__

Tell = Callable[[str], None]
"""Is told what is being measured."""

_VERSION = 12


@dataclass(frozen=True, slots=True)
class Sharing:
    """How this machine is used while it is measured.

    `others` simulated ranks compute beside the one that is timed; `processes` take part
    in a real reduction.
    """

    others: int = 0
    processes: int = processes.FEWEST

    @property
    def share(self) -> float:
        """How many of the processes there are for a core, if more than one."""
        return max(1.0, self.processes / (os.cpu_count() or 1))


ALONE = Sharing()


@dataclass(slots=True)
class Machine:
    """What was measured: of a method, its options, its codec, and with whom it shares.

    Processor time in simulation, what becomes of it in processes, and their rounds.
    """

    rounds: dict[str, Rounds] = field(default_factory=dict)
    speeds: dict[str, Speed] = field(default_factory=dict)
    paces: dict[str, Pace] = field(default_factory=dict)

    def speed(self, choice: Choice, others: int = 0) -> Speed:
        """Of a choice at any density and with any number of teams."""
        return self.speeds[key(choice, others)]

    def pace(self, choice: Choice, sharing: Sharing) -> Pace:
        """Of the same."""
        return self.paces[key_of_pace(choice, sharing)]

    def loopback(self, sharing: Sharing) -> Rounds:
        """Rounds without a network between them."""
        return self.rounds[str(sharing.processes)]

    def _pace(
        self, choice: Choice, walls: list[float], rounds: Rounds, sharing: Sharing
    ) -> Pace:
        """What is left of real reductions when their rounds are done."""
        measured = calibrate.representative(choice).at_density(processes.DENSITY)
        speed, ranks = self.speed(choice, sharing.others), sharing.processes
        simulated = [
            speed.seconds(features(measured, size, ranks), sharing.share)
            for size in processes.SIZES
        ]
        real = [
            wall - moves(measured, size, ranks, rounds, share=sharing.share).seconds
            for wall, size in zip(walls, processes.SIZES, strict=True)
        ]
        return Pace.of(simulated, real, walls)


def key(choice: Choice, others: int = 0) -> str:
    """What choices that are measured together have in common.

    >>> key(Choice.parse("gtopk:variant=tree"), others=1)
    'gtopk variant=tree, elias-fano+bfloat16, beside 1'
    """
    said = [calibrate.representative(choice).label]
    said += [choice.codec] if choice.codec else []
    said += [f"beside {min(others, neighbours.MOST)}"] if others else []
    return ", ".join(said)


def key_of_pace(choice: Choice, sharing: Sharing) -> str:
    """The same for processes."""
    return f"{key(choice, sharing.others)}, {sharing.processes} processes"


def known(
    choices: Iterable[Choice],
    *,
    sharing: Sharing = ALONE,
    anew: bool = False,
    tell: Tell = lambda _: None,
) -> Machine:
    """This machine, with the speeds of these choices: what is not known is measured."""
    file = _file()
    machine = (None if anew else _read(file)) or Machine()
    wanted = {key_of_pace(choice, sharing): choice for choice in choices}
    _simulate(machine, wanted.values(), sharing.others, tell)
    missing = [name for name in wanted if name not in machine.paces]
    if missing:
        tell(f"{sharing.processes} processes over loopback")
        measured = [calibrate.representative(wanted[name]) for name in missing]
        found = processes.measure(measured, sharing.processes)
        machine.rounds[str(sharing.processes)] = found.rounds
        for name, walls in zip(missing, found.reductions, strict=True):
            machine.paces[name] = machine._pace(  # noqa: SLF001
                wanted[name], walls, found.rounds, sharing
            )
        _write(file, machine)
    return machine


def _simulate(
    machine: Machine, choices: Iterable[Choice], others: int, tell: Tell
) -> None:
    wanted = {key(choice, others): choice for choice in choices}
    missing = {n: choice for n, choice in wanted.items() if n not in machine.speeds}
    if missing:
        with neighbours.busy(others):
            machine.speeds.update(calibrate.measure(missing, tell=tell))


def fingerprint() -> dict[str, Any]:
    """What a measurement is only good for."""
    return {
        "thinwire": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def cache_directory() -> Path:
    """Where the user's programs keep what they can make again."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "thinwire"


def _file() -> Path:
    text = json.dumps([_VERSION, fingerprint()], sort_keys=True)
    return cache_directory() / f"speed-{sha256(text.encode()).hexdigest()[:12]}.json"


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name"))
    return platform.processor()


def _read(file: Path) -> Machine | None:
    """What was kept; None where there is nothing, or nothing that can be read."""
    try:
        found = json.loads(file.read_text())
        return Machine(
            {
                count: processes.rounds_from(rounds)
                for count, rounds in found["rounds"].items()
            },
            {
                name: Speed(tuple(speed["mean"]), tuple(speed["busiest"]))
                for name, speed in found["speeds"].items()
            },
            {name: Pace(**pace) for name, pace in found["paces"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(file: Path, machine: Machine) -> None:
    content = {"machine": fingerprint(), **asdict(machine)}
    # Where nothing can be kept, it is measured again next time.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(content, indent=1) + "\n")
        part.replace(file)
