"""Processes as torchrun starts them: an environment, and no process group yet.

They are forked from a process that has imported the frameworks, which takes seconds.
"""

import contextlib
import io
import os
import pickle
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.workers import Outcome, context, free_port, portable

SECONDS = 50.0
EXAMPLES = Path(__file__).parents[2] / "examples"


def launch(
    function: Callable[..., Any],
    *args: Any,
    size: int = 2,
    timeout: float = SECONDS,
    **options: Any,
) -> list[Outcome]:
    """Call a function in each of some processes; what became of them, by rank.

    Those that are not done in time are killed, and have neither result nor error.
    """
    port, processes, ends = free_port(), [], []
    for rank in range(size):
        ours, theirs = context().Pipe()
        process = context().Process(
            target=_run,
            args=(theirs, rank, size, port, partial(function, *args, **options)),
            daemon=True,
        )
        process.start()
        theirs.close()
        processes.append(process)
        ends.append(ours)
    found: dict[int, Outcome] = {}
    deadline = time.monotonic() + timeout
    while len(found) < size and time.monotonic() < deadline:
        open_ = {end: rank for rank, end in enumerate(ends) if rank not in found}
        for end in wait(list(open_), max(deadline - time.monotonic(), 0.0)):
            found[open_[end]] = _received(end)
    for process in processes:
        process.join(max(min(deadline - time.monotonic(), 5.0), 0.0))
        if process.is_alive():
            process.kill()
            process.join()
    nothing = Outcome()
    outcomes = [found.get(rank, nothing) for rank in range(size)]
    return [
        Outcome(each.result, each.error, process.exitcode)
        for each, process in zip(outcomes, processes, strict=True)
    ]


def results(
    function: Callable[..., Any],
    *args: Any,
    size: int = 2,
    timeout: float = SECONDS,
    **options: Any,
) -> list[Any]:
    """What a function returned on each rank; raises what one of them has raised."""
    outcomes = launch(function, *args, size=size, timeout=timeout, **options)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    late = [rank for rank, each in enumerate(outcomes) if each.exitcode != 0]
    assert not late, f"ranks {late} died, or did not end in {timeout} s"
    return [outcome.result for outcome in outcomes]


def script(path: Path, folder: Path, *options: str) -> str:
    """Run a script as the main one, from this folder; what it prints."""
    sys.argv = [str(path), *options]
    os.chdir(folder)
    with io.StringIO() as said, contextlib.redirect_stdout(said):
        runpy.run_path(str(path), run_name="__main__")
        return said.getvalue()


def _received(end: Connection) -> Outcome:
    try:
        outcome: Outcome = pickle.loads(end.recv_bytes())
    except (EOFError, OSError):
        return Outcome()
    return outcome


def _run(
    end: Connection,
    rank: int,
    size: int,
    port: int,
    function: Callable[[], Any],
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        # What torchrun sets too: Lightning looks for it.
        "TORCHELASTIC_RUN_ID": "none",
        "GROUP_RANK": "0",
    }
    try:
        outcome = Outcome(function())
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        text = f"raised on rank {rank} of {size}:\n{traceback.format_exc()}"
        outcome = Outcome(error=portable(error, text))
    # Not `send`: it would leave tensors in memory that ends with this process.
    end.send_bytes(pickle.dumps(outcome))
