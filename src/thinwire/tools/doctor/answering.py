"""The end of a connection that answers, while another rank measures.

A request is a letter and a number of bytes: "u" takes them from the other rank, "d"
sends them. The reply that ends it holds this rank's clock and number.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

from thinwire.tools.doctor.names import family_of

REQUEST = struct.Struct("!cQ")
REPLY = struct.Struct("!dI")
PATIENCE = 5.0  # seconds for a part of a message to arrive
CHUNK = bytes(1 << 20)


@contextmanager
def answering(address: str, rank: int) -> Iterator[int]:
    """Answer on a free port of this address, which is yielded; 0 if that fails."""
    if not address:
        yield 0
        return
    try:
        server = _Server(address, rank)
    except OSError:
        yield 0
        return
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, rank: int) -> None:
        self.address_family = family_of(address)
        self.rank = rank
        super().__init__((address, 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the rank that measures reports what it sees."""


class _Handler(BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        prepare(self.request)
        while request := receive(self.request, REQUEST.size):
            kind, nbytes = REQUEST.unpack(request)
            (take if kind == b"u" else send)(self.request, nbytes)
            self.request.sendall(REPLY.pack(time.time(), self.server.rank))


def prepare(connection: socket.socket) -> None:
    """Bound its waits, and send small messages at once."""
    connection.settimeout(PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def receive(connection: socket.socket, nbytes: int) -> bytes:
    """Exactly so many bytes, or none at the end of the connection."""
    found = bytearray()
    while len(found) < nbytes:
        part = connection.recv(nbytes - len(found))
        if not part:
            return b""
        found += part
    return bytes(found)


def take(connection: socket.socket, nbytes: int) -> None:
    """Receive so many bytes and forget them."""
    room = bytearray(len(CHUNK))
    while nbytes:
        got = connection.recv_into(room, min(nbytes, len(room)))
        if not got:
            raise ConnectionResetError("the other rank has closed the connection")
        nbytes -= got


def send(connection: socket.socket, nbytes: int) -> None:
    """Send so many bytes."""
    with memoryview(CHUNK) as chunk:
        for start in range(0, nbytes, len(chunk)):
            connection.sendall(chunk[: nbytes - start])
