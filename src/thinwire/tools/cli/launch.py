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
from thinwire.tools.bench.ranks import (
    OnProgress,
    ProgressEvent,
    ignore_progress,
    joined,
    launched,
)
from thinwire.tools.bench.worker import JOBS, MARK
from thinwire.tools.lab import Lab, doctor
from thinwire.tools.lab.runner import DELAY_VARIABLE, RATES_VARIABLE
from thinwire.tools.quantities import parse_duration, parse_rate

_WORKER = [sys.executable, "-m", "thinwire.tools.bench.worker"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranks are, and the rate of their links."""

    kind: str  # "ranks" that run already, a "lab" to be made, or "loopback"
    workers: int
    rate: str = ""  # as typed: of the lab, or one that no lab could be built for
    why: str = ""  # no lab could be built
    delay: float = 0.0  # of every message in a lab, one way, in seconds

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
    def latency(self) -> str:
        """What a lab does to the latency, in a sentence."""
        if self.delay:
            return f"Every message is {1e3 * self.delay:g} ms late, one way."
        return "Latency is not shaped."

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
        late = parse_duration(os.environ.get(DELAY_VARIABLE, "0s"), DELAY_VARIABLE)
        return Place("ranks", int(os.environ["WORLD_SIZE"]), given, delay=late)
    if workers < 1:
        raise ConfigError(f"{workers} workers: start 1 or more")
    if not rate:
        return Place("loopback", workers)
    parse_rate(rate)
    missing = doctor.missing()
    kind = "loopback" if missing else "lab"
    return Place(kind, workers, rate, "; ".join(missing))


def run(
    where: Place, job: str, settings: dict[str, Any], console: Console | None = None
) -> dict[str, Any] | None:
    """The result of a job, None on ranks other than 0; progress on standard error."""
    console = console or Console(stderr=True)
    if where.kind == "ranks":
        return _among(job, settings, console)
    command = [job, json.dumps(settings)]
    with _progress(job, console) as on_progress:
        listener = Listener(on_progress)
        if where.kind == "lab":
            with Lab(where.workers, where.rate) as lab:
                code = lab.run([*_WORKER, *command], tell=listener.hear).code
        else:
            code = local(where.workers, [*_WORKER[2:], *command], listener)
    return listener.conclude(code)


def _among(
    job: str, settings: dict[str, Any], console: Console
) -> dict[str, Any] | None:
    made = JOBS[job](**settings)
    with joined() as rank:
        if rank:
            made.measure(ignore_progress)
            return None
        with _progress(job, console) as on_progress:
            return asdict(made.measure(on_progress))


class Listener:
    """Separates messages for this process from the other output of the ranks."""

    def __init__(
        self,
        on_progress: Callable[[Any], None],
        event: Callable[..., Any] = ProgressEvent,
    ) -> None:
        self._on_progress, self._event = on_progress, event
        self._found: dict[str, Any] = {}
        self._said: list[str] = []

    def hear(self, host: int, line: str) -> None:
        """A line of output."""
        content = line.partition(MARK)[2]
        try:
            ((kind, value),) = json.loads(content).items()
        except ValueError:  # no message, or one mixed with another rank's output
            self._said.append(line)
            return
        if kind == "progress":
            self._on_progress(self._event(**value))
        else:
            self._found.setdefault(kind, value)

    def conclude(self, code: int) -> dict[str, Any]:
        """The result; raises `GroupError` if there is none."""
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


def local(workers: int, module: Sequence[str], listener: Listener) -> int:
    """The exit code of local processes of a module, which talk over loopback."""
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(workers)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("--local-addr", "127.0.0.1", "-m"),
    ]
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        # As torchrun has it, which would say so.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    with subprocess.Popen(
        [*torchrun, *module],
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
def _progress(job: str, console: Console) -> Iterator[OnProgress]:
    """A progress bar; where the console is no terminal, a line for every tenth."""
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

        def on_progress(event: ProgressEvent) -> None:
            progress.update(
                bar, completed=event.done, total=event.of, description=event.what
            )

        yield on_progress


def _tenths(job: str, console: Console) -> Callable[[ProgressEvent], None]:
    shown = -1
    console.print(f"{job}: starting", highlight=False)

    def on_progress(event: ProgressEvent) -> None:
        nonlocal shown
        tenth = 10 * event.done // max(event.of, 1)
        if tenth > shown:
            shown = tenth
            console.print(
                f"{job}: {event.what}, {event.done} of {event.of}", highlight=False
            )

    return on_progress


def split(text: str) -> tuple[str, ...]:
    """Names separated by commas, each once.

    >>> split("topk, spardl,topk,")
    ('topk', 'spardl')
    """
    names: Iterable[str] = (name.strip() for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))
