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
from thinwire.tools.plan.processes import ProcessOverhead
from thinwire.tools.plan.processor import Speed, features
from thinwire.tools.plan.transport import transport_time
from thinwire.version import __version__

Tell = Callable[[str], None]
"""Called with what is being measured."""

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
        """Processes per core, at least 1."""
        return max(1.0, self.processes / (os.cpu_count() or 1))


ALONE = Sharing()


@dataclass(slots=True)
class Machine:
    """The measurements, by method, options, codec and sharing.

    Processor time in simulation, its overhead in real processes, and their rounds.
    """

    rounds: dict[str, Rounds] = field(default_factory=dict)
    speeds: dict[str, Speed] = field(default_factory=dict)
    overheads: dict[str, ProcessOverhead] = field(default_factory=dict)

    def speed(self, choice: Choice, others: int = 0) -> Speed:
        """The speed of a choice, at any density and with any number of teams."""
        return self.speeds[key(choice, others)]

    def overhead(self, choice: Choice, sharing: Sharing) -> ProcessOverhead:
        """The overhead of a choice, at any density and with any number of teams."""
        return self.overheads[overhead_key(choice, sharing)]

    def loopback(self, sharing: Sharing) -> Rounds:
        """The rounds of processes over loopback."""
        return self.rounds[str(sharing.processes)]

    def _overhead(
        self, choice: Choice, walls: list[float], rounds: Rounds, sharing: Sharing
    ) -> ProcessOverhead:
        """Fit what real reductions take beside their rounds."""
        measured = calibrate.representative(choice).at_density(processes.DENSITY)
        speed, ranks = self.speed(choice, sharing.others), sharing.processes
        simulated = [
            speed.seconds(features(measured, size, ranks), sharing.share)
            for size in processes.SIZES
        ]
        real = [
            wall
            - transport_time(measured, size, ranks, rounds, share=sharing.share).seconds
            for wall, size in zip(walls, processes.SIZES, strict=True)
        ]
        return ProcessOverhead.of(simulated, real, walls)


def key(choice: Choice, others: int = 0) -> str:
    """The name under which the speed of a choice is stored.

    >>> key(Choice.parse("gtopk:variant=tree"), others=1)
    'gtopk variant=tree, elias-fano+bfloat16, beside 1'
    """
    said = [calibrate.representative(choice).label]
    said += [choice.codec] if choice.codec else []
    said += [f"beside {min(others, neighbours.MOST)}"] if others else []
    return ", ".join(said)


def overhead_key(choice: Choice, sharing: Sharing) -> str:
    """The name under which the overhead of a choice is stored."""
    return f"{key(choice, sharing.others)}, {sharing.processes} processes"


def known(
    choices: Iterable[Choice],
    *,
    sharing: Sharing = ALONE,
    anew: bool = False,
    tell: Tell = lambda _: None,
) -> Machine:
    """This machine with the speeds of these choices; missing ones are measured."""
    file = _file()
    machine = (None if anew else _read(file)) or Machine()
    wanted = {overhead_key(choice, sharing): choice for choice in choices}
    _simulate(machine, wanted.values(), sharing.others, tell)
    missing = [name for name in wanted if name not in machine.overheads]
    if missing:
        tell(f"{sharing.processes} processes over loopback")
        measured = [calibrate.representative(wanted[name]) for name in missing]
        found = processes.measure(measured, sharing.processes)
        machine.rounds[str(sharing.processes)] = found.rounds
        for name, walls in zip(missing, found.reductions, strict=True):
            machine.overheads[name] = machine._overhead(  # noqa: SLF001
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
    """The versions and the processor that a measurement holds for."""
    return {
        "thinwire": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def cache_directory() -> Path:
    """The user's cache directory."""
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
    """The stored measurements; None if there are none that can be read."""
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
            {
                name: ProcessOverhead(**each)
                for name, each in found["overheads"].items()
            },
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
