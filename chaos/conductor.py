"""Starts the processes of a round, hurts them from outside, and ends them all."""

import multiprocessing
import os
import re
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from chaos import wire
from chaos.checks import Told, flips, problems
from chaos.faults import ASKED
from chaos.plan import Fault, Plan
from chaos.restarts import Past
from chaos.worker import Place, keep_store, live
from thinwire.tools.lab import Lab, commands
from thinwire.tools.lab.shaping import Shape

LONGEST = 90.0  # seconds of a life, beside its timeouts
ENDING = 10.0
FAST = 10**9

CONTEXT = multiprocessing.get_context("forkserver")
# What every rank would otherwise load by itself.
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "thinwire.hooks.attach", "thinwire.tools.lab", "chaos.worker"]
    + [f"thinwire.kernels.cpu.{f}" for f in ("accumulate", "dense", "lists", "packet")]
)


@dataclass
class Outcome:
    """What came of a round."""

    wrong: list[str] = field(default_factory=list)
    steps: int = 0
    faults: list[str] = field(default_factory=list)
    folder: Path | None = None  # the logs, if something was wrong


def run(plan: Plan, plant: str | None = None) -> Outcome:
    """Run a round; a finding keeps its logs and ends it."""
    outcome = Outcome()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    past = Past(plan)
    forkserver.ensure_running()  # it keeps files of its own open
    resource_tracker.ensure_running()
    files = _open_files()
    for number, ranks in enumerate(plan.ranks):
        with ExitStack() as stack:
            lab = stack.enter_context(Lab(ranks, "1gbit")) if plan.lab else None
            life = Life(plan, number, folder, lab=lab, plant=plant)
            try:
                life.watch()
            finally:
                life.end()
        outcome.wrong += [*life.wrong, *problems(plan, number, life.told)]
        outcome.wrong += [*past.problems(number, life.told), *life.left_behind()]
        outcome.faults += life.faults
        outcome.faults += flips(life.told) if life.flipped else []
        outcome.steps += max(len(told.steps) for told in life.told)
        if outcome.wrong:
            break
    outcome.faults += past.restarts
    if _open_files() > files:
        outcome.wrong.append(
            f"{_open_files() - files} files of the conductor stay open"
        )
    if outcome.wrong:
        outcome.folder = folder
    else:
        shutil.rmtree(folder)
    return outcome


class Life:
    """The processes of one life; `plant` is a defect that rank 0 gets."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        folder: Path,
        *,
        lab: Lab | None = None,
        plant: str | None = None,
    ) -> None:
        self.plan, self.lab = plan, lab
        ranks = plan.ranks[number]
        self.wrong: list[str] = []
        self.faults: list[str] = []
        self.flipped = False
        self._shared = set(_shared_memory())
        self.told = [Told() for _ in range(ranks)]
        self._later: dict[tuple[str, int], tuple[float, Callable[[], None]]] = {}
        self._store: tuple[BaseProcess, Connection] | None = None
        address, port = (lab.record.address(0) if lab else "127.0.0.1"), _free_port()
        if plan.host is None:
            network = lab.record.pids[0] if lab else None
            self._store = _start(keep_store, address, port, network)
        self._wire: tuple[BaseProcess, Connection] | None = None
        ending = plan.endings[number]
        if lab is not None and ending is not None and ending.kind == "flipped stream":
            wire.prepare(lab)
            where = lab.record.switch, ranks, port
            self._wire = _start(wire.carry, *where)
        self._ranks = []
        for rank in range(ranks):
            network = lab.record.pids[rank] if lab else None
            place = Place(rank, number, address, port, folder, network, plant)
            self._ranks.append(_start(live, plan, place))
        self._pids = [process.pid for process, _ in self._ranks]

    def watch(self) -> None:
        """Listen until every rank is done or gone; do what faults ask for."""
        deadline = time.monotonic() + LONGEST + 2 * self.plan.timeout
        listening = {c: rank for rank, (_, c) in enumerate(self._ranks)}
        while not all(t.finished or t.code is not None for t in self.told):
            now = time.monotonic()
            if now > deadline:
                self._say_who_hangs()
                return
            self._do_what_is_due(now)
            for connection in wait(list(listening), timeout=0.05):
                assert isinstance(connection, Connection)
                if not self._hear(listening[connection], connection):
                    del listening[connection]

    def end(self) -> None:
        """Undo what lasts, let all processes end, and end those that do not."""
        self._do_what_is_due(float("inf"))
        self.flipped = self._wire is not None and self._wire[1].poll()
        # The store ends last, and the wire: ranks that are ending may ask it.
        helpers = [each for each in (self._store, self._wire) if each is not None]
        processes = [*self._ranks, *helpers]
        for number, (process, connection) in enumerate(processes):
            with suppress(OSError):
                connection.send("end")
            connection.close()
            process.join(ENDING)
            if process.is_alive():
                self.wrong.append(f"process {number} does not end")
                process.kill()
                process.join()
            if number < len(self.told):
                self.told[number].code = process.exitcode
                killed = process.exitcode == -signal.SIGKILL
                self.faults += ["kill"] if killed else []
            process.close()

    def left_behind(self) -> list[str]:
        """Processes and shared memory of this life that are still there."""
        pids = {str(pid) for pid in self._pids}
        left = [f"process {pid}" for pid in pids if Path("/proc", pid).exists()]
        for shared in set(_shared_memory()) - self._shared:
            if pids & set(re.findall(r"\d+", shared.name)):
                left.append(str(shared))
                shared.unlink(missing_ok=True)  # not to be found again
        return [f"{each} is left behind" for each in left]

    def _hear(self, rank: int, connection: Connection) -> bool:
        """Take a message; False at the end of the connection."""
        try:
            kind, what = connection.recv()
        except (EOFError, OSError):
            process, _ = self._ranks[rank]
            process.join(ENDING)
            self.told[rank].code = process.exitcode
            return False
        self.told[rank].messages.append((kind, what))
        if kind == "hurt":
            self._hurt(rank, what)
        return True

    def _hurt(self, rank: int, fault: Fault) -> None:
        if fault.kind != "flipped stream":
            self.faults.append(fault.kind)
        lab, pid = self.lab, self._pids[rank]
        if "stop" in fault.kind and pid is not None:
            self._undo_after(fault, rank, lambda: os.kill(pid, signal.SIGCONT))
        if self._wire is not None:
            # Hosts that are off the bridge stay off it; long frames need fast links.
            if fault.kind == "flipped stream":
                self._wire[1].send(fault.detail)
        elif "cut" in fault.kind and lab is not None:
            lab.cut(rank)
            self._undo_after(fault, rank, lambda: lab.heal(rank))
        elif fault.kind == "slow host" and lab is not None:
            _shape(lab, rank, fault.detail)
            self._undo_after(fault, rank, lambda: _shape(lab, rank, FAST))
        if fault.kind in ASKED:
            self._ranks[rank][1].send("done")

    def _undo_after(self, fault: Fault, rank: int, undo: Callable[[], None]) -> None:
        """Undo a fault after its time; of two that overlap, after the later one."""
        key = fault.kind.removeprefix("long "), rank
        end, _ = self._later.get(key, (0.0, undo))
        self._later[key] = max(end, time.monotonic() + fault.seconds), undo

    def _do_what_is_due(self, now: float) -> None:
        due = [key for key, (when, _) in self._later.items() if when <= now]
        for key in due:
            _, undo = self._later.pop(key)
            with suppress(ProcessLookupError):
                undo()

    def _say_who_hangs(self) -> None:
        for rank, told in enumerate(self.told):
            if told.finished or told.code is not None:
                continue
            last = max(told.steps, default=None)
            self.wrong.append(f"rank {rank} hangs after step {last}: see its log")
            pid = self._pids[rank]
            if pid is not None:
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.5)
                os.kill(pid, signal.SIGKILL)


def _start(target: Callable[..., None], *given: Any) -> tuple[BaseProcess, Connection]:
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(there, *given), daemon=True)
    process.start()
    there.close()  # so that the end of the process ends the connection
    return process, here


def _shape(lab: Lab, host: int, rate: int) -> None:
    """Limit a host's link to `rate` bits a second, both ways."""
    how = Shape(rate).discipline().split()
    ends = ((lab.record.switch, f"port{host}"), (lab.record.pids[host], "eth0"))
    for pid, interface in ends:
        commands.run("tc", "qdisc", "replace", "dev", interface, "root", *how, pid=pid)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _shared_memory() -> list[Path]:
    return list(Path("/dev/shm").glob("*"))


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many
