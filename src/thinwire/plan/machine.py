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

from thinwire.plan import calibrate, neighbours, transport
from thinwire.plan.choice import Choice
from thinwire.plan.processor import Speed
from thinwire.plan.transport import Transport
from thinwire.version import __version__

Tell = Callable[[str], None]
"""Is told what is being measured."""

_VERSION = 4


@dataclass(slots=True)
class Machine:
    """Speeds by what was measured: a method, its options, its codec, its neighbours."""

    transport: Transport
    speeds: dict[str, Speed] = field(default_factory=dict)

    def speed(self, choice: Choice, others: int = 0) -> Speed:
        """Of a choice at any density and with any number of teams."""
        return self.speeds[key(choice, others)]


def key(choice: Choice, others: int = 0) -> str:
    """What choices that are measured together have in common.

    >>> key(Choice.parse("gtopk:variant=tree"), others=1)
    'gtopk variant=tree, elias-fano+bfloat16, beside 1'
    """
    said = [calibrate.representative(choice).label]
    said += [choice.codec] if choice.codec else []
    said += [f"beside {min(others, neighbours.MOST)}"] if others else []
    return ", ".join(said)


def known(
    choices: Iterable[Choice],
    *,
    others: int = 0,
    anew: bool = False,
    tell: Tell = lambda _: None,
) -> Machine:
    """This machine, with the speeds of these choices: what is not known is measured.

    `others` is how many cores besides a rank's own are busy with other ranks.
    """
    file = _file()
    machine = None if anew else _read(file)
    if machine is None:
        tell("moving bytes between two processes")
        machine = Machine(transport.measure())
    wanted = {key(choice, others): choice for choice in choices}
    missing = [name for name in wanted if name not in machine.speeds]
    if missing:
        with neighbours.busy(others):
            for name in missing:
                tell(name)
                machine.speeds[name] = calibrate.measure(wanted[name])
        _write(file, machine)
    return machine


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
        speeds = {
            name: Speed(tuple(speed["mean"]), tuple(speed["busiest"]))
            for name, speed in found["speeds"].items()
        }
        return Machine(transport.from_dict(found["transport"]), speeds)
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
