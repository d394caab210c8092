"""A lab as an ordinary user: tests that run as root become one for it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.tools.lab.machines import eventually, users

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

NOBODY = 65534
SCRIPT = """
import json, os, sys
from thinwire.errors import LabError
from thinwire.tools.lab import Lab, doctor
missing = doctor.missing()
if missing:
    print(json.dumps({"missing": missing}))
    sys.exit()
lines = []
with Lab(2, "100mbit") as lab:
    pids = [lab.record.switch, *lab.record.pids]
    command = ["sh", "-c", "ip -o -4 address show eth0; tc qdisc show dev eth0"]
    codes = lab.run(command, tell=lambda *line: lines.append(line), timeout=50).codes
    lab.cut(1)
    lab.heal(1)
print(json.dumps({"user": os.geteuid(), "pids": pids, "codes": codes, "lines": lines}))
"""

KILLED = """
import os, signal
from thinwire.tools.lab import Lab
lab = Lab(2)
lab.up()
def tell(rank, line):
    print(lab.record.switch, *lab.record.pids, line, lab.record.file, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
lab.run(["sh", "-c", "setsid sleep 60 & readlink /proc/self/ns/net; wait"], tell=tell)
"""


def as_user(script, folder):
    """A script as a user without privileges; with another Python if this is hidden."""
    user = {} if os.geteuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    environment = {
        **{k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        command = [python, "-c", "import thinwire.tools.lab"]
        given = {"env": environment, "cwd": "/", "text": True, **user}
        try:
            subprocess.run(command, check=True, capture_output=True, **given)
        except (OSError, subprocess.CalledProcessError):
            continue
        return subprocess.run(
            [python, "-c", script], check=False, capture_output=True, **given
        )
    pytest.skip("no Python here that an ordinary user may run, with torch")


@pytest.fixture
def folder():
    """A folder that every user can write; pytest's own are for one user."""
    with tempfile.TemporaryDirectory(prefix="lab") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_lab_is_built_shaped_and_removed_without_root(folder):
    done = as_user(SCRIPT, folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    if "missing" in told:
        pytest.skip(f"users can build no lab here: {'; '.join(told['missing'])}")
    assert told["user"] != 0
    assert told["codes"] == [0, 0]
    said = [line for _, line in sorted(told["lines"])]
    assert sum("10.0.0." in line for line in said) == 2
    assert sum("tbf" in line and "rate 100Mbit" in line for line in said) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in told["pids"])
    assert list(folder.glob("thinwire-*/*")) == []


def test_nothing_is_left_of_a_killed_one(folder):
    told = json.loads(as_user(SCRIPT, folder).stdout)
    if "missing" in told:
        pytest.skip(f"users can build no lab here: {'; '.join(told['missing'])}")
    done = as_user(KILLED, folder)
    assert done.returncode == -signal.SIGKILL, done.stderr
    *pids, space, file = done.stdout.split()
    assert len(pids) == 3
    assert eventually(lambda: users({space}) == [])
    assert eventually(lambda: not any(Path("/proc", pid).exists() for pid in pids))
    assert eventually(lambda: not Path(file).exists())
