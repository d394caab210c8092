"""The example runs as its first lines say, and resumes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import free_port

EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp_topk.py"


def start(*options: str) -> subprocess.Popen[str]:
    """The example, started by torchrun."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(launcher: subprocess.Popen[str]) -> str:
    """What it prints; it must succeed."""
    try:
        printed, errors = launcher.communicate(timeout=80)
    finally:
        launcher.kill()
    assert launcher.returncode == 0, errors
    return printed


def losses(printed: str) -> list[str]:
    assert "replicas are bit-identical" in printed
    return [line for line in printed.splitlines() if line.startswith("step")]


@pytest.mark.processes
@pytest.mark.timeout(180)  # two launches, each of which loads torch from scratch
def test_it_trains_saves_and_goes_on(tmp_path):
    given = ["--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    given += ["--folder", str(tmp_path / "checkpoint")]
    lines = losses(said(start(*given)))
    lines += losses(said(start(*given, "--steps", "40", "--resume")))
    assert [line.split(":")[0] for line in lines] == [f"step {n}" for n in range(40)]
    first, *_, last = (float(line.split()[-1]) for line in lines)
    assert last < first


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_it_trains_on_two_hosts(tmp_path):
    """Two launchers, as on two hosts, that share a folder."""
    given = ["--nnodes", "2", "--rdzv-backend", "c10d"]
    given += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", str(EXAMPLE)]
    given += ["--folder", str(tmp_path / "checkpoint"), "--steps", "5"]
    printed = [said(host) for host in [start(*given), start(*given)]]
    # Only the host of rank 0 says anything.
    assert sorted(map(len, map(str.splitlines, printed))) == [0, 6]
    assert len(losses("".join(printed))) == 5
    assert len(list((tmp_path / "checkpoint").glob("thinwire.*.pt"))) == 2
