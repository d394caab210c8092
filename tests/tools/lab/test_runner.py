"""A run ends on all hosts at once and leaves no processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.tools.lab.machines import (
    PYTHON,
    SECONDS,
    eventually,
    networks,
    running,
    said,
    users,
)
from thinwire.errors import ConfigError, LabError
from thinwire.tools.lab import Lab, record

pytestmark = [pytest.mark.lab, pytest.mark.processes]

RUNNER = """
from thinwire.tools.lab import Lab
with Lab(hosts=2, name={name!r}) as lab:
    lab.run(["sh", "-c", "sleep 60 & echo ready; wait"])
"""

VISITOR = """
from thinwire.tools.lab import Lab
Lab.find({name!r}).run(["sh", "-c", "sleep 60 & echo ready; wait"])
"""


@pytest.fixture(scope="module")
def pair():
    with Lab(hosts=2) as found:
        yield found


def test_the_environment_is_torchruns(pair):
    names = ("MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    names += ("GROUP_RANK", "GROUP_WORLD_SIZE", "GLOO_SOCKET_IFNAME")
    names += ("THINWIRE_LAB_RATES", "THINWIRE_LAB_DELAY")
    show = " ".join(f"${name}" for name in names)
    assert said(pair, "sh", "-c", f"echo {show}") == [
        (0, "10.0.0.1 0 2 0 1 0 2 eth0 1gbit,1gbit 0s"),
        (1, "10.0.0.1 1 2 0 1 1 2 eth0 1gbit,1gbit 0s"),
    ]
    ports = {line for _, line in said(pair, "sh", "-c", "echo $MASTER_PORT")}
    assert len(ports) == 1


def test_ranks_of_a_host_share_its_network(pair):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    show = " ".join(f"${name}" for name in names)
    lines = []
    command = ["sh", "-c", f"echo {show} $(readlink /proc/self/ns/net)"]
    outcome = pair.run(
        command,
        ranks_per_host=2,
        tell=lambda *line: lines.append(line),
        timeout=SECONDS,
    )
    assert outcome.codes == (0, 0, 0, 0)
    found = [line.rsplit(" ", 1) for _, line in sorted(lines)]
    given = [f"{rank} 4 {rank % 2} 2 {rank // 2}" for rank in range(4)]
    assert [text for text, _ in found] == given
    spaces = [space for _, space in found]
    assert spaces[0] == spaces[1] != spaces[2] == spaces[3]


@pytest.mark.parametrize("number", [0, 65])
def test_too_few_and_too_many_ranks_on_a_host_are_refused(pair, number):
    with pytest.raises(ConfigError, match=f"{number} ranks per host: give 1 to 64"):
        pair.run(["true"], ranks_per_host=number)


def test_a_lab_that_is_not_up_runs_nothing():
    with pytest.raises(LabError, match="not up"):
        Lab(hosts=2).run(["true"])


def test_hosts_have_names_and_only_there(pair):
    look_up = "import socket; print(*socket.gethostbyaddr('10.0.0.2')[::2])"
    assert said(pair, *PYTHON, look_up) == [(h, "host1 ['10.0.0.2']") for h in (0, 1)]
    assert "host1" not in Path("/etc/hosts").read_text()


def test_lines_are_printed_after_their_host(pair, capfd):
    pair.run(["sh", "-c", "echo out; echo err >&2; printf unended"])
    out = capfd.readouterr().out.splitlines()
    expected = ["out", "err", "unended"]
    assert [line for line in out if line[:3] == "[0]"] == [f"[0] {x}" for x in expected]
    assert sorted(out) == sorted(f"[{h}] {x}" for h in (0, 1) for x in expected)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_writes_ends_quietly_once_nobody_listens(pair):
    def tell(rank, line):
        raise BrokenPipeError

    outcome = pair.run(["sh", "-c", "while echo line; do :; done"], tell=tell)
    assert outcome.codes[outcome.failed] == -signal.SIGPIPE


def test_one_failure_ends_the_others(pair):
    start = time.monotonic()
    outcome = pair.run(["sh", "-c", "[ $RANK = 0 ] && sleep 60; exit 7"])
    assert time.monotonic() - start < 30
    assert outcome.failed == 1
    assert outcome.codes == (-signal.SIGTERM, 7)
    assert outcome.code == 7
    assert eventually(lambda: running(pair.record) == [])


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    open(sys.argv[1], "w").close()
    time.sleep(60)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.abort()
"""


def test_what_does_not_want_to_end_is_killed(pair, monkeypatch, tmp_path):
    monkeypatch.setattr("thinwire.tools.lab.runner._GRACE_SECONDS", 0.2)
    command = [*PYTHON, STUBBORN, str(tmp_path / "deaf")]
    outcome = pair.run(command, tell=lambda *_: None)
    assert outcome.codes == (-signal.SIGKILL, -signal.SIGABRT)
    assert outcome.code == 128 + signal.SIGABRT


def test_a_killed_child_fails_the_run_and_the_lab_stays_whole(pair):
    outcome = pair.run(["sh", "-c", "[ $RANK = 1 ] && kill -9 $$; exec sleep 60"])
    assert outcome.failed == 1
    assert outcome.code == 128 + signal.SIGKILL
    assert said(pair, "echo", "fine") == [(0, "fine"), (1, "fine")]


def test_what_a_process_leaves_in_the_background_ends_with_it(pair):
    assert said(pair, "sh", "-c", "sleep 60 & echo done") == [(0, "done"), (1, "done")]
    assert eventually(lambda: running(pair.record) == [])


def test_a_run_that_takes_too_long_is_an_error(pair):
    with pytest.raises(LabError, match=r"ranks \[0, 1\] are not done after 0.1 s"):
        pair.run(["sleep", "60"], timeout=0.1)
    assert eventually(lambda: running(pair.record) == [])


def test_a_command_is_needed(pair):
    with pytest.raises(LabError, match="no command"):
        pair.run([])


def test_a_command_that_does_not_exist_fails(pair):
    lines = []
    outcome = pair.run(["no-such-command"], tell=lambda *line: lines.append(line[1]))
    assert outcome.code != 0
    assert "no-such-command" in " ".join(lines)


def test_two_runs_at_once_do_not_meet(pair):
    outcomes = []
    command = ["sh", "-c", "sleep 0.3; echo $MASTER_PORT"]
    ports = []
    runs = [
        threading.Thread(
            target=lambda: outcomes.append(
                pair.run(command, tell=lambda _, line: ports.append(line))
            )
        )
        for _ in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [outcome.code for outcome in outcomes] == [0, 0]
    assert len(ports) == 4


def started(script):
    """A process of its own that runs something on two hosts; they have said so."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert [process.stdout.readline()[3:] for _ in range(2)] == [" ready\n"] * 2
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_lab_that_stays_survives_its_runner(pair, number):
    with started(VISITOR.format(name=pair.record.name)) as process:
        assert len(running(pair.record)) >= 4
        os.killpg(process.pid, number)
        errors = process.stderr.read()
    assert process.returncode != 0
    assert eventually(lambda: running(pair.record) == [])
    assert said(pair, "echo", "fine") == [(0, "fine"), (1, "fine")]
    assert "Error" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_runner_that_is_ended(number):
    name = record.new_name()
    with started(RUNNER.format(name=name)) as process:
        (found,) = [each for each in record.find_all() if each.name == name]
        there = networks(found)
        assert len(running(found)) >= 4
        os.killpg(process.pid, number)
        process.communicate()
    assert process.returncode != 0
    assert eventually(lambda: users(there) == [])
    assert eventually(lambda: not (found.file.exists() or found.names.exists()))


def test_a_killed_lab_is_gone_and_its_run_fails():
    lab, outcomes = Lab(hosts=2), []
    ready = threading.Semaphore(0)
    with lab:
        there = networks(lab.record)
        waiting = threading.Thread(
            target=lambda: outcomes.append(
                lab.run(
                    ["sh", "-c", "setsid sleep 60 & echo ready; wait"],
                    tell=lambda *_: ready.release(),
                )
            )
        )
        waiting.start()
        # Both: one that had not entered yet would fail of itself.
        assert all(ready.acquire(timeout=SECONDS) for _ in range(2))
        os.kill(lab.record.owner.pid, signal.SIGKILL)
        waiting.join()
    # The kernel kills both; the runner ends the other one if it sees one dead first.
    codes, first = outcomes[0].codes, outcomes[0].failed
    assert codes[first] == -signal.SIGKILL
    assert codes[1 - first] in (-signal.SIGKILL, -signal.SIGTERM)
    assert eventually(lambda: users(there) == [])
