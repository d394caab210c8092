"""The elastic example: a killed worker costs the steps since the last save."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from examples import elastic

from tests.workers import pool

EXAMPLE = Path(elastic.__file__)
STEPS, EVERY = 60, 10


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    lists = [(task / "children").read_text().split() for task in tasks]
    return [int(child) for each in lists for child in each]


def run_and_kill(folder, at):
    """What the example prints under torchrun; a worker is killed after step `at`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "2", str(EXAMPLE)]
    command += ["--folder", str(folder), "--steps", str(STEPS), "--every", str(EVERY)]
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    source = str(Path(elastic.thinwire.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    lines = []
    with subprocess.Popen(
        [*command, "--pause", "0.01"],
        env={**os.environ, **own, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        watchdog = threading.Timer(80, launcher.kill)
        watchdog.start()
        for line in launcher.stdout:
            lines.append(line.strip())
            if line.startswith(f"step {at}:"):
                victim = random.Random(at).choice(children_of(launcher.pid))
                os.kill(victim, signal.SIGKILL)
                at = -1
        watchdog.cancel()
    assert launcher.returncode == 0
    return lines


def uninterrupted(group, folder):
    return elastic.train(Path(folder), STEPS, EVERY)


@pytest.mark.processes
@pytest.mark.timeout(120)  # two starts of processes that load torch from scratch
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_killed_worker_costs_the_steps_since_the_last_save(tmp_path):
    lines = run_and_kill(tmp_path / "killed", at=27)
    whole, _ = pool(2).run(uninterrupted, str(tmp_path / "whole"))
    starts = [line for line in lines if line.startswith("start")]
    assert starts[0] == "start at step 0 with 2 workers"
    assert len(starts) == 2
    first = int(starts[1].split()[3])
    assert first >= 20
    assert first % EVERY == 0
    seen = [line for line in lines if line.startswith("step")]
    # Every step that was done, also twice, had the loss of the uninterrupted run.
    assert len(seen) > STEPS
    for line in seen:
        step = int(line.split()[1].rstrip(":"))
        assert line == f"step {step}: loss {whole[step]:.9g}"
    assert lines[-1].startswith("done: loss")
