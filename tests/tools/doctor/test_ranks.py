"""Real processes that examine each other over Gloo's interface."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.workers import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PLANTED = str(Path(__file__).with_name("planted.py"))
DOCTOR = ["-c", "from thinwire.tools.cli import main; main()", "doctor"]
TORCHRUN = [
    *("-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
    *("--local-addr", "127.0.0.1"),
]


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    given = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), **given, **more}


def start(arguments, **more):
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that all of it can be ended
    )


def finish(process):
    try:
        out, err = process.communicate(timeout=80)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def as_rank(rank, port, arguments, **more):
    place = {"RANK": str(rank), "WORLD_SIZE": "2"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return start(arguments, **place, **more)


def problems(out):
    found = json.loads(out)
    return {each["what"]: each for each in found["problems"]}


def named(found, text):
    return next(each for what, each in found.items() if text in what)


def test_two_ranks_measure_each_other_and_print_once():
    arguments = [*TORCHRUN, "--no-python", sys.executable, *DOCTOR, "--json"]
    code, out, err = finish(start(arguments))
    found = json.loads(out)
    assert "RuntimeError" not in err
    assert (found["ranks"], found["missing"], len(found["facts"])) == (2, [], 2)
    for facts in found["facts"].values():
        assert facts["interface"]["name"] == "lo"
        assert facts["interface"]["address"] == "127.0.0.1"
        assert facts["versions"]["torch"]
    (link,) = found["links"]
    assert (link["first"], link["second"], link["why"]) == (0, 1, "")
    assert link["latency"] > 0
    assert min(link["there"], link["back"]) > 0
    assert abs(link["ahead"]) <= link["unsure"] + 0.01  # one machine, one clock
    assert code == bool(found["problems"])
    # Whatever this machine lacks is none of these.
    assert not [what for what in problems(out) if "ranks" in what or "Gloo" in what]


def test_what_is_planted_on_one_rank_is_named_with_its_remedy():
    torchrun = [*TORCHRUN, PLANTED, "version,clock", "--json"]
    code, out, _ = finish(start(torchrun, OMP_NUM_THREADS="4096"))
    found = problems(out)
    assert code == 1
    versions = named(found, "different versions of thinwire")
    assert "rank 1: 0.0.9" in versions["what"]
    assert "same version" in versions["remedy"]
    clocks = named(found, "the clock of rank 1 is 5.0 s ahead of that of rank 0")
    assert "chrony" in clocks["remedy"]
    threads = named(found, "ask for 8192 threads")
    assert threads["ranks"] == [0, 1]
    assert "export OMP_NUM_THREADS=" in threads["remedy"]


@pytest.mark.parametrize("present", [0, 1])
def test_a_rank_that_does_not_come_is_named(present):
    arguments = [*DOCTOR, "--wait", "1", "--json"]
    code, out, _ = finish(as_rank(present, free_port(), arguments))
    assert code == 1
    assert json.loads(out)["missing"] == [1 - present]
    wanted = "missing after 1 s: rank 1" if present == 0 else "rank 0 at 127.0.0.1"
    assert named(problems(out), wanted)["remedy"]


def test_a_rank_that_ends_meanwhile_is_named():
    port = free_port()
    arguments = [PLANTED, "death", "--wait", "5", "--json"]
    second = as_rank(1, port, arguments)
    code, out, _ = finish(as_rank(0, port, arguments))
    assert finish(second)[0] == 9
    assert code == 1
    found = json.loads(out)
    assert found["missing"] == [1]
    assert list(found["facts"]) == ["0", "1"]
    assert named(problems(out), "missing after 5 s: rank 1")


def test_a_store_that_stops_is_not_waited_for():
    """Rank 0 keeps the store: its process is stopped, and its connections stay."""
    port = free_port()
    arguments = [PLANTED, "stop", "--wait", "3", "--json"]
    first = as_rank(0, port, arguments, PLANT_ON="0")
    try:
        code, out, _ = finish(as_rank(1, port, arguments, PLANT_ON="0"))
    finally:
        first.kill()
        finish(first)
    assert code == 1
    assert json.loads(out)["missing"] == [0]
    assert named(problems(out), "the ranks' store is gone: it does not answer")


def test_an_interface_that_is_missing_on_one_rank_does_not_stall_the_other():
    port = free_port()
    second = as_rank(1, port, DOCTOR, GLOO_SOCKET_IFNAME="nope0")
    code, out, _ = finish(as_rank(0, port, DOCTOR))
    assert finish(second)[:2] == (1, "")
    assert code == 1
    said = " ".join(out.split())
    assert "PROBLEM rank 1: GLOO_SOCKET_IFNAME is 'nope0'" in said
    assert "remedy: export GLOO_SOCKET_IFNAME=NAME; those with an address: " in said
    assert max(map(len, out.splitlines())) <= 80
