"""Reductions of real processes over loopback, which take longer than simulated ones.

Threads of the library take processor time, waiting threads have to be woken, and caches
are cold afterwards. So processes, as many for each core as there will be ranks, time
rounds (`tools/round_timing.py`) and reductions of each method, short to long.

Run as a module, this is all of them: `python -m thinwire.tools.plan.processes JSON`. It
forks when torch is imported, which takes longer than all the rest, and before kernels
are.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.cost import Rounds
from thinwire.errors import GroupError
from thinwire.groups import Group, simulate
from thinwire.groups.torch import TorchGroup
from thinwire.tools import round_timing
from thinwire.tools.plan import calibrate
from thinwire.tools.plan.choice import Choice

FEWEST, MOST = 2, 8
SIZES = (20_000, 1_000_000, 8_000_000)
DENSITY = 0.01
_WARM = 2  # steps, until selection has its hints
_TURNS = 9  # of each method at each size, one after the other
_TOGETHER = 8  # methods that take turns: the residual of each takes memory meanwhile
_TURN_SECONDS, _MOST_OFTEN = 0.02, 5  # steps of a turn: as many as fit
_TIMEOUT = 180.0


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Seconds of rounds, and of reductions from short to long."""

    rounds: Rounds
    reductions: list[list[float]]  # of each choice


@dataclass(frozen=True, slots=True)
class ProcessOverhead:
    """Maps processor seconds of a method in simulation to those in a real process."""

    constant: float = 0.0
    factor: float = 1.0

    @classmethod
    def of(
        cls, simulated: Sequence[float], real: Sequence[float], walls: Sequence[float]
    ) -> "ProcessOverhead":
        """The line of least error, relative to what whole reductions took.

        Processes do not compute faster than the simulation: the factor is at least 1.
        The constant may be negative: ranks that compute do not all wait at once.

        >>> ProcessOverhead.of([1.0, 10.0], [4.0, 22.0], [5.0, 30.0])
        ProcessOverhead(constant=2.0, factor=2.0)
        >>> ProcessOverhead.of([1.0, 10.0], [0.0, 9.0], [5.0, 30.0])
        ProcessOverhead(constant=-1.0, factor=1.0)
        """
        weights = 1 / np.array(walls)
        table = np.array([[1.0, each] for each in simulated]) * weights[:, None]
        constant, factor = np.linalg.lstsq(table, real * weights, rcond=None)[0]
        if factor < 1:
            more = np.array(real) - simulated
            constant, factor = np.average(more, weights=weights**2), 1.0
        return cls(round(float(constant), 9), round(float(factor), 9))

    def seconds(self, simulated: float) -> float:
        """Seconds in a process; fewer if ranks wait at different times.

        >>> overhead = ProcessOverhead(-1.0, 1.5)
        >>> overhead.seconds(10.0), overhead.seconds(0.5)
        (14.0, 0.25)
        """
        return max(simulated / 2, self.constant + self.factor * simulated)


def count(share: float, others: int) -> int:
    """The number of processes that share this machine's cores as the ranks will."""
    cores = os.cpu_count() or 1
    crowd = share * cores if share > 1 else min(others + 1, cores)
    pairs = round(crowd / 2)  # two teams must divide them
    return max(FEWEST, min(MOST, 2 * pairs))


def measure(
    choices: Sequence[Choice], processes: int, sizes: Sequence[int] = SIZES
) -> ProcessTimes:
    """Start the processes; the first one returns the times."""
    given = json.dumps([[asdict(each) for each in choices], processes, sizes])
    leader = subprocess.Popen(
        [sys.executable, "-m", __name__, given],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # so that all of them can be ended at once
    )
    try:
        output, _ = leader.communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise GroupError(
            f"{processes} processes did not get through their reductions over loopback "
            f"in {_TIMEOUT} s"
        ) from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        leader.communicate()
    try:
        found = json.loads(output)
    except ValueError as error:
        raise GroupError(
            f"{processes} processes could not exchange messages over loopback; their "
            "complaint is above"
        ) from error
    return ProcessTimes(rounds_from(found["rounds"]), found["reductions"])


def rounds_from(found: dict[str, Any]) -> Rounds:
    """Rounds from their JSON."""
    curves = {
        name: tuple((int(nbytes), float(seconds)) for nbytes, seconds in curve)
        for name, curve in found.items()
    }
    return Rounds(**curves)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _choice(given: dict[str, Any]) -> Choice:
    options = tuple((name, value) for name, value in given.pop("options"))
    return Choice(**given, options=options)


def _lead(given: Sequence[dict[str, Any]], processes: int, sizes: list[int]) -> None:
    torch.set_num_threads(1)
    choices = [_choice(each).at_density(DENSITY) for each in given]
    place = {"processes": processes, "port": _free_port()}
    children = []
    for rank in range(1, processes):
        child = os.fork()
        if child == 0:
            _take_part(choices, sizes, rank, **place)
            os._exit(0)
        children.append(child)
    found = _take_part(choices, sizes, 0, **place)
    for child in children:
        os.waitpid(child, 0)
    sys.stdout.write(json.dumps(asdict(found)))


def _take_part(
    choices: Sequence[Choice],
    sizes: Sequence[int],
    rank: int,
    *,
    processes: int,
    port: int,
) -> ProcessTimes:
    with _joined(rank, processes, port) as group:  # at once, while the port is free
        # Each for itself, as ranks do: kernels that were loaded before the fork are in
        # the caches for all, and 2 processes then reduced 1 M elements in 2.4 ms, not
        # 3.5.
        for choice in choices:
            simulate(FEWEST, partial(_load, choice))
        return measure_here(choices, sizes, group)


def _load(choice: Choice, group: Group) -> None:
    _Timed(choice, torch.empty(1000), group)


@contextmanager
def _joined(rank: int, processes: int, port: int) -> Iterator[Group]:
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=_TIMEOUT),
    )
    yield TorchGroup()
    dist.barrier()
    dist.destroy_process_group()


def measure_here(
    choices: Sequence[Choice], sizes: Sequence[int], group: Group
) -> ProcessTimes:
    """The times on this rank of a group; all ranks call it together."""
    rounds = round_timing.measure(group)
    grads = [torch.empty(size) for size in sizes]
    reductions = []
    for first in range(0, len(choices), _TOGETHER):
        reductions += _in_turns(choices[first : first + _TOGETHER], grads, group)
    return ProcessTimes(rounds, reductions)


def _in_turns(
    choices: Sequence[Choice], grads: Sequence[Tensor], group: Group
) -> list[list[float]]:
    timed = [[_Timed(choice, grad, group) for grad in grads] for choice in choices]
    for _ in range(_TURNS):
        for one in chain(*timed):
            one.take_turn()
    return [[median(one.walls) for one in each] for each in timed]


class _Timed:
    """A method at one size. Its turns are spread over the whole measurement.

    A slow moment of the machine then affects all methods.
    """

    def __init__(self, choice: Choice, grad: Tensor, group: Group) -> None:
        self._group, self._step = group, 0
        self._grad = grad  # anew in every step: others may use it
        self._reduce = calibrate.reduction(choice, len(grad), group)
        fastest = min(self._reduced() for _ in range(_WARM))
        self._often = max(1, min(_MOST_OFTEN, int(_TURN_SECONDS / fastest)))
        self.walls: list[float] = []

    def take_turn(self) -> None:
        self.walls += [self._reduced() for _ in range(self._often)]

    def _reduced(self) -> float:
        """Seconds of the slowest rank, the same on all ranks."""
        grad, rank = self._grad, self._group.rank
        grad.copy_(calibrate.gradient(len(grad), rank, self._step))
        self._step += 1
        return round_timing.slowest(self._group, lambda: self._reduce(grad))


if __name__ == "__main__":
    _lead(*json.loads(sys.argv[1]))
