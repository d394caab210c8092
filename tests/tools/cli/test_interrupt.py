"""Ctrl-C ends a demo and all its processes, without tracebacks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def living(process_group: int) -> list[int]:
    """Processes of a group that are more than an entry in the process table."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().split(" (", 1)
        except OSError:  # it ended meanwhile
            continue
        state, _, group, *_ = rest.rsplit(") ", 1)[1].split()
        if int(group) == process_group and state != "Z":
            found.append(int(pid))
    return found


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_of_an_interrupted_demo():
    command = "from thinwire.tools.cli import main; main(['demo', '--workers', '2'])"
    with subprocess.Popen(
        [sys.executable, "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert any("training 1 of 4" in line for line in process.stdout)
        assert len(living(process.pid)) >= 3
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in errors
    for _ in range(100):  # a killed process takes a moment to go
        if not living(process.pid):
            break
        time.sleep(0.1)
    assert living(process.pid) == []
