"""What moving bytes costs the processor: two real processes over loopback, by Gloo.

Run as a module, this is one of the two: `python -m thinwire.plan.transport RANK PORT`.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import mean
from time import perf_counter, process_time

import torch
import torch.distributed as dist

from thinwire.errors import GroupError
from thinwire.groups import Op
from thinwire.groups.torch import TorchGroup

_SMALL, _LARGE = 256, 16_000_000  # bytes
_REPEATS = {_SMALL: 100, _LARGE: 5}
_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Moving:
    """Seconds for a round, however short, and processor seconds for one and a byte."""

    latency: float
    round: float
    byte: float


@dataclass(frozen=True, slots=True)
class Transport:
    """Packets between two ranks, and the library's all-reduce, which also adds up."""

    exchange: Moving
    all_reduce: Moving


def measure() -> Transport:
    """Start the two processes, and let one of them tell."""
    port = _free_port()
    command = [sys.executable, "-m", __name__]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(port)],
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        told, _ = processes[0].communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise GroupError(
            f"two processes did not exchange messages over loopback in {_TIMEOUT} s"
        ) from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    try:
        found = json.loads(told)
    except ValueError as error:
        raise GroupError(
            "two processes could not exchange messages over loopback; their complaint "
            "is above"
        ) from error
    return from_dict(found)


def from_dict(found: dict[str, dict[str, float]]) -> Transport:
    """What `dataclasses.asdict` made of one."""
    return Transport(Moving(**found["exchange"]), Moving(**found["all_reduce"]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _work(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    group = TorchGroup(timeout=_TIMEOUT)

    def exchange(nbytes: int) -> Callable[[], object]:
        body, peer = torch.zeros(nbytes, dtype=torch.uint8), 1 - rank
        return lambda: group.exchange(body, dst=peer, src=peer, nbytes=nbytes)

    def all_reduce(nbytes: int) -> Callable[[], object]:
        # Around a ring of two, each sends as many bytes as there are, in two rounds.
        buffer = torch.zeros(nbytes // 4)
        return lambda: group.all_reduce_((buffer, Op.SUM))

    found = Transport(_moving(exchange, rounds=1), _moving(all_reduce, rounds=2))
    if rank == 0:
        sys.stdout.write(json.dumps(asdict(found)))
    dist.barrier()
    dist.destroy_process_group()


def _moving(make: Callable[[int], Callable[[], object]], rounds: int) -> Moving:
    (wall, small), (_, large) = (_timed(make(n), _REPEATS[n]) for n in (_SMALL, _LARGE))
    byte = max(0.0, large - small) / (_LARGE - _SMALL)
    return Moving(wall / rounds, small / rounds, byte)


def _timed(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """A call's seconds, and processor seconds of all threads.

    What else runs on the machine can only add to them: of the former the least counts,
    of the latter, whose clock is coarse, the mean of the smaller half.
    """
    call()
    walls, spent = [], []
    for _ in range(repeats):
        cpu, start = process_time(), perf_counter()
        call()
        walls.append(perf_counter() - start)
        spent.append(process_time() - cpu)
    return min(walls), mean(sorted(spent)[: -(-repeats // 2)])


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]))
