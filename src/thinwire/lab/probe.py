"""Send messages from one host to another over TCP, and time them.

    python probe.py receive PORT
    python probe.py send ADDRESS PORT SIZE:REPEATS:PAUSE...

A message begins with its length; the receiver answers with the moment at which it had
the whole of it. Both are on one machine, so they read the same clock. The sender prints
a JSON list of seconds for each SIZE. This file is run as a script, on its own: it
imports nothing of thinwire, so that it starts at once.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

_LENGTH = struct.Struct("!Q")
_MOMENT = struct.Struct("!d")
_BUFFER = 1 << 18
_SECONDS = 30.0  # of silence: the other end is cut off
_HIGHEST_PRIORITY = -20


def receive(port: int) -> None:
    """Accept one sender and answer all its messages."""
    buffer = bytearray(_BUFFER)
    with socket.create_server(("", port)) as server:
        _say("ready")
        connection, _ = server.accept()
    with connection:
        _hurry(connection)
        while _read(connection, _LENGTH.size, buffer):
            (size,) = _LENGTH.unpack_from(buffer)
            _read(connection, size - _LENGTH.size, buffer)
            connection.sendall(_MOMENT.pack(time.monotonic()))


def send(address: str, port: int, *series: str) -> None:
    """Send the messages of each series, and print how long each took."""
    with socket.create_connection((address, port)) as connection:
        _hurry(connection)
        for each in series:
            size, repeats, pause = each.split(":")
            times = _send(connection, int(size), int(repeats), float(pause))
            _say(json.dumps(list(times)))


def _send(
    connection: socket.socket, size: int, repeats: int, pause: float
) -> Iterator[float]:
    message = bytearray(size)
    _LENGTH.pack_into(message, 0, size)
    answer = bytearray(_MOMENT.size)
    for _ in range(repeats):
        time.sleep(pause)  # the link is idle, its bucket full: the worst case
        start = time.monotonic()
        connection.sendall(message)
        _read(connection, _MOMENT.size, answer)
        yield _MOMENT.unpack_from(answer)[0] - start


def _read(connection: socket.socket, size: int, buffer: bytearray) -> bool:
    """Read `size` bytes; a message longer than the buffer overwrites itself."""
    view = memoryview(buffer)
    while size:
        got = connection.recv_into(view, min(size, len(view)))
        if not got:
            return False
        size -= got
    return True


def _hurry(connection: socket.socket) -> None:
    connection.settimeout(_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # The link is to be measured, not what else runs here.
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST_PRIORITY)
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
