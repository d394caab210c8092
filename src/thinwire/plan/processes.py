"""What simulated ranks do not show: real reductions of real processes, over loopback.

Threads of the library take processor time of their own, who waits has to be woken, and
caches are cold afterwards. So as many processes as would crowd a machine's cores alike
time rounds (`groups/pace.py`) and reductions of each method, short to long.

Run as a module, this is all of them: `python -m thinwire.plan.processes JSON`. It forks
when torch is imported, which takes longer than all the rest.
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
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from thinwire.cost import Rounds
from thinwire.errors import GroupError
from thinwire.groups import Group, pace, simulate
from thinwire.groups.torch import TorchGroup
from thinwire.plan import calibrate
from thinwire.plan.choice import Choice

FEWEST, MOST = 2, 8
SIZES = (20_000, 1_000_000, 8_000_000)
DENSITY = 0.01
_WARM, _STEPS = 2, 9  # until selection has its hints, and then
_TIMEOUT = 180.0


@dataclass(frozen=True, slots=True)
class Walls:
    """What processes took: for rounds, and for reductions from short to long."""

    rounds: Rounds
    reductions: list[list[float]]  # of each choice


@dataclass(frozen=True, slots=True)
class Pace:
    """Of a method: seconds of its computing in a process, from those in simulation."""

    constant: float = 0.0
    factor: float = 1.0

    @classmethod
    def of(
        cls, simulated: Sequence[float], real: Sequence[float], walls: Sequence[float]
    ) -> "Pace":
        """The line of least error, relative to what whole reductions took.

        Nobody computes faster in a process, so the factor is at least 1. The constant
        may be negative: ranks that compute do not all wait at once.

        >>> Pace.of([1.0, 10.0], [4.0, 22.0], [5.0, 30.0])
        Pace(constant=2.0, factor=2.0)
        >>> Pace.of([1.0, 10.0], [0.0, 9.0], [5.0, 30.0])
        Pace(constant=-1.0, factor=1.0)
        """
        weights = 1 / np.array(walls)
        table = np.array([[1.0, each] for each in simulated]) * weights[:, None]
        constant, factor = np.linalg.lstsq(table, real * weights, rcond=None)[0]
        if factor < 1:
            more = np.array(real) - simulated
            constant, factor = np.average(more, weights=weights**2), 1.0
        return cls(round(float(constant), 9), round(float(factor), 9))

    def seconds(self, simulated: float) -> float:
        """In a process; less than in simulation where ranks do not all wait at once.

        >>> Pace(-1.0, 1.5).seconds(10.0), Pace(-1.0, 1.5).seconds(0.5)
        (14.0, 0.25)
        """
        return max(simulated / 2, self.constant + self.factor * simulated)


def count(share: float, others: int) -> int:
    """How many processes crowd this machine's cores as ranks will crowd theirs."""
    cores = os.cpu_count() or 1
    crowd = share * cores if share > 1 else min(others + 1, cores)
    pairs = round(crowd / 2)  # two teams must divide them
    return max(FEWEST, min(MOST, 2 * pairs))


def measure(
    choices: Sequence[Choice], processes: int, sizes: Sequence[int] = SIZES
) -> Walls:
    """Start the processes, and let one of them tell."""
    given = json.dumps([[asdict(each) for each in choices], processes, sizes])
    leader = subprocess.Popen(
        [sys.executable, "-m", __name__, given],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # so that all of them can be ended at once
    )
    try:
        told, _ = leader.communicate(timeout=_TIMEOUT)
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
        found = json.loads(told)
    except ValueError as error:
        raise GroupError(
            f"{processes} processes could not exchange messages over loopback; their "
            "complaint is above"
        ) from error
    return Walls(rounds_from(found["rounds"]), found["reductions"])


def rounds_from(found: dict[str, Any]) -> Rounds:
    """What JSON made of them."""
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
    for choice in choices:  # loads the kernels, once for all
        simulate(FEWEST, partial(_reduced, choice, 1000))
    port, children = _free_port(), []
    for rank in range(1, processes):
        child = os.fork()
        if child == 0:
            with _joined(rank, processes, port) as group:
                _walls(choices, sizes, group)
            os._exit(0)
        children.append(child)
    with _joined(0, processes, port) as group:
        found = _walls(choices, sizes, group)
    for child in children:
        os.waitpid(child, 0)
    sys.stdout.write(json.dumps(asdict(found)))


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


def _walls(choices: Sequence[Choice], sizes: Sequence[int], group: Group) -> Walls:
    rounds = pace.measure(group)
    reductions = [
        [median(_reduced(choice, size, group)) for size in sizes] for choice in choices
    ]
    return Walls(rounds, reductions)


def _reduced(choice: Choice, size: int, group: Group) -> list[float]:
    """Seconds of the slowest rank in each step."""
    grad = torch.empty(size)
    reduce_ = calibrate.reduction(choice, size, group)
    walls = []
    for step in range(_WARM + _STEPS):
        grad.copy_(calibrate.gradient(size, group.rank, step))
        walls.append(pace.slowest(group, lambda: reduce_(grad)))
    return walls[_WARM:]


if __name__ == "__main__":
    _lead(*json.loads(sys.argv[1]))
