"""Ctrl-C ends a demo and all its processes, without tracebacks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def living(word: str) -> list[int]:
    """Processes whose command has a word, wherever they are."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in line.read_bytes():
                found.append(int(line.parent.name))
        except OSError:  # it ended meanwhile
            continue
    return found


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_of_an_interrupted_demo(tmp_path):
    word = "77.03125"  # seconds that nobody else asks for
    command = "from thinwire.tools.cli import main; import sys; main(sys.argv[1:])"
    options = ["demo", "--workers", "2", "--seconds", word]
    options += ["--picture", str(tmp_path / "picture.svg")]
    with subprocess.Popen(
        [sys.executable, "-c", command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert any("1 of 4, plain DDP" in line for line in process.stderr)
        assert len(living(word)) >= 3
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in errors
    for _ in range(100):  # a killed process takes a moment to go
        if not living(word):
            break
        time.sleep(0.1)
    assert living(word) == []
