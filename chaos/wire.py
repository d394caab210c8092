"""A switch of a lab that flips bits of TCP streams, which TCP then does not notice.

The ports of a lab's hosts are taken off their bridge. A process in the bridge's
namespace carries the frames between them and, when asked, flips one bit of what a frame
carries and sums it up again: the receiver's checksum is right, as if the bit had been
wrong before it was sent, or after it had been received.
"""

import random
import select
import socket
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from thinwire.tools.lab import Lab, commands
from thinwire.tools.lab.enter import enter
from thinwire.tools.lab.network import INTERFACE

_ALL = 0x0003  # every protocol
_OUTGOING = 4  # a frame that this host sends
_ETHERNET, _IPV4, _TCP = 14, b"\x08\x00", 6
# Frames stay whole: what a host may send at once fits, and its link lets it through.
HOST_MTU, PORT_MTU = 8000, 9000


def prepare(lab: Lab) -> None:
    """Take the hosts off the bridge, and let long frames through."""
    for host in range(lab.record.hosts):
        lab.cut(host)
        switch, own = lab.record.switch, lab.record.pids[host]
        for pid, interface, mtu in (
            (switch, f"port{host}", PORT_MTU),
            (own, INTERFACE, HOST_MTU),
        ):
            # One segment a frame: a frame of several cannot be sent on as it is.
            setting = ["mtu", str(mtu), "gso_max_segs", "1"]
            commands.run("ip", "link", "set", interface, *setting, pid=pid)


def carry(connection: Connection, network: int, hosts: int, spared: int) -> None:
    """Carry frames until the connection ends; a number on it asks for a flip.

    The number is the seed of the flip. Streams to or from the port `spared` are left
    alone: the store's.
    """
    enter(network)
    switch = Switch([_port(host) for host in range(hosts)])
    while True:
        watched: list[Any] = [*switch.ports, connection]
        ready = select.select(watched, [], [])[0]
        if connection in ready:
            given = connection.recv()
            if not isinstance(given, int):
                return
            switch.flip = Flip(given, spared)
        for port in switch.ports:
            if port in ready and switch.forward(port):
                connection.send("flipped")


class Switch:
    """Ports, the hosts behind them, and a bit to be flipped, if any."""

    def __init__(self, ports: list[socket.socket]) -> None:
        self.ports = ports
        self.flip: Flip | None = None
        self._known: dict[bytes, socket.socket] = {}

    def forward(self, source: socket.socket) -> bool:
        """Take a frame and send it on; whether a bit of it was flipped."""
        given, (_, _, kind, *_) = source.recvfrom(1 << 16)
        if kind == _OUTGOING:
            return False
        frame, flipped = bytearray(given), False
        if _is_tcp(frame):
            flipped = self.flip is not None and self.flip.done(frame)
            self.flip = None if flipped else self.flip
            sum_up(frame)
        self._known[given[6:12]] = source
        out = self._known.get(given[:6])
        for port in [out] if out is not None else set(self.ports) - {source}:
            port.send(frame)
        return flipped


class Flip:
    """A bit to be flipped, once there is a frame with enough of a payload.

    Two of three wait for more than a note or a header of Gloo's.
    """

    def __init__(self, seed: int, spared: int) -> None:
        self._drawn = random.Random(seed)
        self._least = self._drawn.choice([1, 200, 200])
        self._spared = spared

    def done(self, frame: bytearray) -> bool:
        """Flip a bit of a TCP frame's payload, if it is one that this waits for."""
        start = _ETHERNET + (frame[_ETHERNET] & 15) * 4
        end = _ETHERNET + int.from_bytes(frame[_ETHERNET + 2 : _ETHERNET + 4], "big")
        ends = (frame[start : start + 2], frame[start + 2 : start + 4])
        begin = start + (frame[start + 12] >> 4) * 4
        spared = self._spared.to_bytes(2, "big") in ends
        if spared or end - begin < self._least:
            return False
        at = self._drawn.randrange(begin, end)
        frame[at] ^= 1 << self._drawn.randrange(8)
        return True


def sum_up(frame: bytearray) -> None:
    """Write the checksum of a TCP frame, which a virtual link leaves out too."""
    start = _ETHERNET + (frame[_ETHERNET] & 15) * 4
    end = _ETHERNET + int.from_bytes(frame[_ETHERNET + 2 : _ETHERNET + 4], "big")
    frame[start + 16 : start + 18] = bytes(2)
    segment = bytes(frame[start:end])
    addresses = bytes(frame[_ETHERNET + 12 : _ETHERNET + 20])
    summed = addresses + bytes([0, _TCP]) + len(segment).to_bytes(2, "big") + segment
    words = np.frombuffer(summed + bytes(len(summed) % 2), ">u2")
    total = int(words.sum(dtype=np.uint64))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    frame[start + 16 : start + 18] = (total ^ 0xFFFF).to_bytes(2, "big")


def _is_tcp(frame: bytearray) -> bool:
    return frame[12:14] == _IPV4 and frame[_ETHERNET + 9] == _TCP


def _port(host: int) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    port.bind((f"port{host}", 0))
    return port
