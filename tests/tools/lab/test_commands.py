import pytest

from thinwire.errors import LabError
from thinwire.tools.lab import commands


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A stand-in for `ip`, from the lines of a shell script."""

    def write(*lines):
        script = tmp_path / "ip"
        script.write_text("\n".join(["#!/bin/sh", *lines]))
        script.chmod(0o755)
        monkeypatch.setattr(commands, "find", lambda _: str(script))
        # Where it runs is another matter.
        monkeypatch.setattr(commands, "inside", lambda pid: ["env", f"PLACE={pid}"])

    return write


def test_arguments_and_script_reach_the_tool(tool):
    tool('printf "%s\\n" "$*"', "cat")
    assert commands.run("ip", "a", "b", pid=1, script="c\nd") == "a b\nc\nd"


def test_a_batch_is_one_process_in_one_namespace(tool, tmp_path):
    tool(f'printf "%s\\n" "$PLACE $*" >> {tmp_path}/seen', f"cat >> {tmp_path}/seen")
    commands.batch("ip", 17, ["link one", "link two"])
    expected = "17 -batch -\nlink one\nlink two\n"
    assert (tmp_path / "seen").read_text() == expected


def test_a_failure_says_what_was_run_and_what_was_said(tool):
    tool("echo not today >&2", "exit 2")
    with pytest.raises(LabError) as failure:
        commands.run("ip", "-batch", "-", pid=1, script="link one\nlink two")
    assert "ip -batch - failed: not today" in str(failure.value)
    assert "link one; link two" in str(failure.value)
    assert "thinwire lab doctor" in str(failure.value)


def test_a_tool_that_hangs_is_an_error(tool, monkeypatch):
    tool("exec sleep 10")
    monkeypatch.setattr(commands, "_SECONDS", 0.1)
    with pytest.raises(LabError, match="ip link: no end after"):
        commands.run("ip", "link", pid=1)


def test_a_missing_tool_is_named(monkeypatch):
    monkeypatch.setattr(commands, "find", lambda _: None)
    with pytest.raises(LabError, match="there is no tc: install iproute2"):
        commands.run("tc", "qdisc", pid=1)
