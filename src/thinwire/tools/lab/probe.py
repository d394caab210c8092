"""Send messages from one host to another over TCP, and time them.

    python probe.py receive PORT
    python probe.py send ADDRESS PORT

A message begins with its length; the receiver sends back the moment at which it had
the whole of it. Both are on one machine, so they read the same clock. For each number
of bytes that it reads the sender prints the seconds that such a message took. This file
is run as a script, on its own: it imports nothing of thinwire, so that it starts at
once.
"""

import os
import socket
import struct
import sys
import time
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
        _prepare(connection)
        while _read(connection, _LENGTH.size, buffer):
            (size,) = _LENGTH.unpack_from(buffer)
            _read(connection, size - _LENGTH.size, buffer)
            connection.sendall(_MOMENT.pack(time.monotonic()))


def send(address: str, port: int) -> None:
    """Send the messages that are asked for, and print how long each took."""
    with socket.create_connection((address, port), _SECONDS) as connection:
        _prepare(connection)
        _say("ready")
        for line in sys.stdin:
            _say(repr(_send(connection, int(line))))


def _send(connection: socket.socket, size: int) -> float:
    message, answer = bytearray(size), bytearray(_MOMENT.size)
    _LENGTH.pack_into(message, 0, size)
    start = time.monotonic()
    connection.sendall(message)
    if not _read(connection, _MOMENT.size, answer):
        raise ConnectionError("the receiver is gone")
    end: float = _MOMENT.unpack(answer)[0]
    return end - start


def _read(connection: socket.socket, size: int, buffer: bytearray) -> bool:
    """Read `size` bytes; a message longer than the buffer overwrites itself."""
    view = memoryview(buffer)
    while size:
        got = connection.recv_into(view, min(size, len(view)))
        if not got:
            return False
        size -= got
    return True


def _prepare(connection: socket.socket) -> None:
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
        send(sys.argv[2], int(sys.argv[3]))
