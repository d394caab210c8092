"""Run a command in the namespaces of another process.

    python enter.py PID net COMMAND...   on its network: takes this process's place
    python enter.py PID all COMMAND...   as its child, which ends if stdin is closed

This file is run as a script, on its own: it imports nothing of thinwire, so that it
starts at once.
"""

import ctypes
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack

KINDS = {"net": ("user", "net"), "all": ("user", "net", "pid", "mnt")}
_SET_DEATH_SIGNAL, _SET_DUMPABLE = 1, 4
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_NOT_FOUND = 127


def enter(pid: int, kinds: Sequence[str] = KINDS["net"]) -> None:
    """Move this process, which has one thread, into namespaces of another one.

    Its later children, and they alone, are in the namespace of process numbers.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as stack:
        # All are opened first: in another mount namespace there may be another /proc.
        files = [
            stack.enter_context(open(f"/proc/{pid}/ns/{kind}"))  # noqa: PTH123
            for kind in kinds
            if kind != "user" or _differs(pid, kind)
        ]
        for file in files:
            if libc.setns(file.fileno(), 0):
                code = ctypes.get_errno()
                raise OSError(code, f"cannot enter {file.name}: {os.strerror(code)}")


def _differs(pid: int, kind: str) -> bool:
    """A process cannot enter the user namespace that it is in."""
    there, here = (os.stat(f"/proc/{each}/ns/{kind}") for each in (pid, "self"))  # noqa: PTH116
    return not os.path.samestat(there, here)


def _exec(command: list[str]) -> None:
    for number in (*_ENDING, *_IGNORED_BY_PYTHON):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND)


def _start(command: list[str]) -> int:
    pid = os.fork()
    if pid == 0:
        # Also if this process is killed, which can do nothing then.
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        _exec(command)
    return pid


def _wait(pid: int) -> int:
    """How the command ended; its whole group ends with the other end of stdin."""
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            return os.waitpid(pid, 0)[1]
        if not os.read(0, 1):
            os.killpg(0, signal.SIGKILL)


def _end_alike(status: int) -> None:
    """End as the command did."""
    if os.WIFSIGNALED(status):
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0)  # it leaves no core of its own
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _main(pid: int, kinds: str, command: list[str]) -> None:
    folder = os.getcwd()  # noqa: PTH109 - left behind with the mounts
    enter(pid, KINDS[kinds])
    if kinds == "net":
        _exec(command)
    os.chdir(folder)
    child = _start(command)
    # Who ends the command ends its group; this process has to say how it ended. Not
    # before there is a command: it would miss a signal that it still ignores then.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    _end_alike(_wait(child))


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
