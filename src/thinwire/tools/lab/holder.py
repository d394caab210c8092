"""The process that a lab lives in: when it ends, for any reason, so does the lab.

    unshare --mount --net --pid --fork python holder.py HOSTS NAMES RECORD

It is the first process of a namespace of process numbers, so the kernel kills what runs
on the hosts when it ends, and namespaces without processes are gone. It ends when its
standard input is closed, unless it is told to stay. This file is run as a script: it
imports nothing of thinwire.
"""

import ctypes
import json
import os
import signal
import sys

STAY = "stay"
_NEW_MOUNTS, _NEW_NETWORK = 0x00020000, 0x40000000
_SAFE = 2 | 4 | 8  # no set-user-id, no devices, no programs
_BIND = 4096


def _main(hosts: int, names: str, record: str) -> None:
    # What a command leaves behind becomes a child of this process: let it go.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    switch = _number()
    pids = [_host(names) for _ in range(hosts)]
    sys.stdout.write(json.dumps({"switch": switch, "hosts": pids}) + "\n")
    sys.stdout.flush()
    _be_silent()
    if sys.stdin.readline() == STAY + "\n":
        _be_silent(0)
        _rest()
    os.unlink(record)  # noqa: PTH108


def _host(names: str) -> int:
    """Start a process in a new network namespace; the number others know it by."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        try:
            _live(names, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    if not said:
        sys.exit("a host could not be made")
    return int(said)


def _live(names: str, ready: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS | _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no namespace for a host")
    number = _number()
    # A system may refuse these; the hosts then see the machine's own.
    libc.mount(b"proc", b"/proc", b"proc", _SAFE, None)
    libc.mount(b"sysfs", b"/sys", b"sysfs", _SAFE, None)
    libc.mount(names.encode(), b"/etc/hosts", None, _BIND, None)
    os.write(ready, str(number).encode())
    os.close(ready)
    _be_silent(0)
    _rest()


def _number() -> int:
    """This process's number outside: /proc is still the one from there."""
    return int(os.readlink("/proc/self"))  # noqa: PTH115


def _be_silent(*more: int) -> None:
    """Hold no pipe of the process that started this one."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (1, 2, *more):
        os.dup2(nothing, file)


def _rest() -> None:
    while True:
        signal.pause()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
