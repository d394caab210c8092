"""Where a measurement runs: among given ranks, in a lab made for it, or on loopback.

Ranks that someone else has started, with torchrun or `thinwire lab run`, measure as
they are. Else this process starts them: on the hosts of a lab if a rate was asked for
and there can be one, otherwise as local processes, through torchrun.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from thinwire.errors import ConfigError, GroupError
from thinwire.quantities import parse_rate
from thinwire.tools.bench.ranks import Beat, Tell, joined, launched, say_nothing
from thinwire.tools.bench.worker import JOBS, MARK
from thinwire.tools.lab import Lab, doctor
from thinwire.tools.lab.runner import RATES_VARIABLE

_WORKER = [sys.executable, "-m", "thinwire.tools.bench.worker"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranks are, and what is known of their links."""

    kind: str  # "ranks" that run already, a "lab" to be made, or "loopback"
    workers: int
    rate: str = ""  # as typed: of the lab, or a wish that cannot be met
    why: str = ""  # it cannot

    @property
    def shaped(self) -> bool:
        """Whether a lab slows the links down."""
        return self.kind == "lab" or bool(self.kind == "ranks" and self.rate)

    @property
    def network(self) -> str:
        """What connects the ranks: a "lab", "loopback", or the user's own "network"."""
        if self.kind == "loopback":
            return self.kind
        return "lab" if self.shaped else "network"

    @property
    def bits(self) -> int | None:
        """The slowest link's bits per second, where a rate is known."""
        rates = [parse_rate(rate) for rate in self.rate.split(",") if rate]
        return min(rates, default=None)


def place(workers: int, rate: str = "") -> Place:
    """Where to measure, here and now."""
    if launched():
        given = ",".join(split(os.environ.get(RATES_VARIABLE, "")))
        if rate:
            raise ConfigError(
                f"rate is {rate!r}, but ranks run already, on links of their own: "
                "leave the rate out, or start this command alone"
            )
        return Place("ranks", int(os.environ["WORLD_SIZE"]), given)
    if workers < 1:
        raise ConfigError(f"{workers} workers: start 1 or more")
    if not rate:
        return Place("loopback", workers)
    parse_rate(rate)
    missing = doctor.missing()
    kind = "loopback" if missing else "lab"
    return Place(kind, workers, rate, "; ".join(missing))


def run(
    where: Place, job: str, settings: dict[str, Any], console: Console
) -> dict[str, Any] | None:
    """What a job found; None on ranks that have nothing to say."""
    if where.kind == "ranks":
        return _among(job, settings, console)
    command = [job, json.dumps(settings)]
    with _progress(job, console) as tell:
        listener = _Listener(tell)
        if where.kind == "lab":
            with Lab(where.workers, where.rate) as lab:
                code = lab.run([*_WORKER, *command], tell=listener.hear).code
        else:
            code = _local(where.workers, command, listener)
    return listener.conclude(code)


def _among(
    job: str, settings: dict[str, Any], console: Console
) -> dict[str, Any] | None:
    made = JOBS[job](**settings)
    with joined() as rank:
        if rank:
            made.measure(say_nothing)
            return None
        with _progress(job, console) as tell:
            return asdict(made.measure(tell))


class _Listener:
    """Sorts what ranks print: messages for this process, and the rest, for people."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._found: dict[str, Any] = {}
        self._said: list[str] = []

    def hear(self, host: int, line: str) -> None:
        """A line of output."""
        content = line.partition(MARK)[2]
        try:
            ((kind, value),) = json.loads(content).items()
        except ValueError:  # no message, or one that another rank wrote into
            self._said.append(line)
            return
        if kind == "beat":
            self._tell(Beat(**value))
        else:
            self._found.setdefault(kind, value)

    def conclude(self, code: int) -> dict[str, Any]:
        """The result, or the failure that there is none for."""
        if "error" in self._found:
            raise GroupError(self._found["error"])
        if "failure" in self._found:
            raise GroupError(f"a process failed:\n{self._found['failure']}")
        if code or "result" not in self._found:
            said = "\n".join(self._said[-40:])
            raise GroupError(
                f"the processes ended with code {code}; they said:\n{said}"
            )
        result: dict[str, Any] = self._found["result"]
        return result


def _local(workers: int, command: Sequence[str], listener: _Listener) -> int:
    """The exit code of local processes, which talk over loopback."""
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(workers)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("--local-addr", "127.0.0.1", "-m", "thinwire.tools.bench.worker"),
    ]
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        # As torchrun has it, which would say so.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    with subprocess.Popen(
        [*torchrun, *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                listener.hear(0, line.rstrip("\n"))
        except BaseException:
            process.terminate()  # it ends its processes first
            raise
    return process.returncode


@contextmanager
def _progress(job: str, console: Console) -> Iterator[Tell]:
    """A bar that beats move; a line for every tenth where there can be no bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f}"),
        TimeElapsedColumn(),
    )
    if not console.is_terminal:
        yield _tenths(job, console)
        return
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=1)

        def tell(beat: Beat) -> None:
            progress.update(
                bar, completed=beat.done, total=beat.of, description=beat.what
            )

        yield tell


def _tenths(job: str, console: Console) -> Callable[[Beat], None]:
    told = -1

    def tell(beat: Beat) -> None:
        nonlocal told
        tenth = 10 * beat.done // max(beat.of, 1)
        if tenth > told:
            told = tenth
            console.print(
                f"{job}: {beat.what}, {beat.done} of {beat.of}", highlight=False
            )

    return tell


def split(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once.

    >>> split("topk, spardl,topk,")
    ('topk', 'spardl')
    """
    names: Iterable[str] = (name.strip() for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))
