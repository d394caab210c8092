"""`thinwire doctor` on one host, without a launcher."""

import json
import os
import subprocess
import sys
from threading import Event

import pytest

from thinwire.tools.cli import main
from thinwire.tools.doctor import facts, names


@pytest.fixture(autouse=True)
def healthy(monkeypatch, tmp_path):
    """A process of its own, on a machine without problems."""
    for name in ("RANK", "WORLD_SIZE", "NUMBA_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(facts, "_HUGE_PAGES", tmp_path / "enabled")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    resolved = {"localhost": ("127.0.0.1",)}
    monkeypatch.setattr(
        names,
        "resolved",
        lambda name: names.Name(name, *2 * [resolved.get(name, ("127.0.0.1",))]),
    )


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    return end.value.code or 0, *capsys.readouterr()


def test_a_healthy_host_has_no_problem(capsys):
    code, out, _ = run(capsys)
    assert "No problem found." in out
    assert "lo (set)" in out
    assert "127.0.0.1" in out
    assert "huge pages: madvise" in out
    assert max(map(len, out.splitlines())) <= 80
    assert code == 0


def test_json_has_the_facts(capsys):
    code, out, _ = run(capsys, "--json")
    found = json.loads(out)
    assert (code, found["problems"], found["missing"]) == (0, [], [])
    assert found["facts"]["0"]["interface"]["name"] == "lo"
    assert found["facts"]["0"]["cache"]["folder"]


@pytest.mark.parametrize(
    ("variable", "value", "what", "remedy"),
    [
        (
            "GLOO_SOCKET_IFNAME",
            "nope0",
            "GLOO_SOCKET_IFNAME is 'nope0': no interface of this name",
            "export GLOO_SOCKET_IFNAME=NAME; those with an address: ",
        ),
        (
            "GLOO_SOCKET_IFNAME",
            "lo,nope0",
            "GLOO_SOCKET_IFNAME is 'nope0'",
            "export GLOO_SOCKET_IFNAME=NAME",
        ),
        ("OMP_NUM_THREADS", "4096", "4096 threads", "export OMP_NUM_THREADS="),
    ],
)
def test_a_planted_setting_is_named_with_its_remedy(
    capsys, monkeypatch, variable, value, what, remedy
):
    monkeypatch.setenv(variable, value)
    code, out, _ = run(capsys)
    said = " ".join(out.split())
    assert what in said.partition("PROBLEM")[2]
    assert f"remedy: {remedy}" in said
    assert "No problem" not in said
    assert code == 1


@pytest.mark.processes
@pytest.mark.parametrize("only_there", [False, True])
def test_a_cache_that_cannot_be_written_is_named_with_its_remedy(tmp_path, only_there):
    """In a process of its own: numba decides once where kernels are kept."""
    no_folder = tmp_path / "file"
    no_folder.touch()
    settings = {"NUMBA_CACHE_DIR": str(no_folder / "cache")}
    if only_there:  # as where neither the package nor the home can be written
        settings["NUMBA_CACHE_LOCATOR_CLASSES"] = "UserProvidedCacheLocator"
    command = "from thinwire.tools.cli import main; main(['doctor', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    wanted = "kernels cannot be kept" if only_there else "which cannot be written"
    problems = json.loads(done.stdout)["problems"]
    (found,) = [each for each in problems if wanted in each["what"]]
    assert "NUMBA_CACHE_DIR" in found["remedy"]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("variables", "arguments", "said"),
    [
        ({}, ["--wait", "0"], "wait is 0"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, [], "RANK is 2 and WORLD_SIZE is 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, [], "MASTER_PORT is ''"),
    ],
)
def test_bad_input_is_named(capsys, monkeypatch, variables, arguments, said):
    monkeypatch.delenv("MASTER_PORT", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_host_name_that_does_not_resolve(capsys, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(names, "resolved", names.Name)
    code, out, _ = run(capsys)
    said = " ".join(out.split())
    assert "does not resolve; Gloo uses loopback" in said
    assert "into /etc/hosts, or export GLOO_SOCKET_IFNAME=NAME" in said
    assert "PROBLEM localhost does not resolve" in said
    assert code == 1


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.undo()  # the look-up is the real one
    answer = Event()
    monkeypatch.setattr(names, "LONGEST", 0.01)
    monkeypatch.setattr(names, "_look_up", lambda *_: answer.wait(60))
    assert names.resolved("localhost").addresses == ()
    assert not answer.is_set()
    answer.set()
