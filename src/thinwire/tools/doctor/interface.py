"""The network interface that Gloo uses on this host, found by Gloo's own rules.

It is the first address of what GLOO_SOCKET_IFNAME names. Without it, it is the first
address of the host's name that a socket can be bound to; without that, loopback.
"""

import os
import socket
import struct
from array import array
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from thinwire.tools.doctor.names import Name

VARIABLE = "GLOO_SOCKET_IFNAME"

_SETTINGS = Path("/sys/class/net")
_IPV6 = Path("/proc/net/if_inet6")
_SIOCGIFCONF = 0x8912  # Linux: the interfaces that have an IPv4 address
_ENTRY = 40  # bytes of an interface in its answer
_MEGABIT = 10**6


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface that is used, and those that could be."""

    name: str = ""  # as given, also if there is none of this name; "" if not known
    address: str = ""  # "" if there is none
    named: bool = False  # by the variable
    present: tuple[str, ...] = ()  # all that have an address
    speeds: dict[str, int] = field(default_factory=dict)  # bit/s, where known

    @property
    def speed(self) -> int | None:
        """Bits per second; None where the system does not know."""
        return self.speeds.get(self.name)

    @property
    def family(self) -> str:
        """The family of its address."""
        if not self.address:
            return ""
        return "IPv6" if ":" in self.address else "IPv4"

    @property
    def loopback(self) -> bool:
        """Whether other hosts cannot reach it."""
        return self.address.startswith("127.") or self.address == "::1"


def used(host: Name) -> Interface:
    """The interface that Gloo uses, given what the host's name resolves to."""
    every = addresses()
    found = Interface(
        present=tuple(every),
        speeds={name: speed for name in every if (speed := speed_of(name))},
    )
    given = os.environ.get(VARIABLE, "")
    if given:
        # Of several, Gloo takes turns; the first one that is missing stops it.
        names = given.split(",")
        name = next((name for name in names if name not in every), names[0])
        address = next(iter(every.get(name, [])), "")
        return replace(found, name=name, address=address, named=True)
    address = next(iter(host.bindable), "127.0.0.1")
    owners = [name for name, its in every.items() if address in its]
    if not owners and address.startswith("127."):
        owners = [name for name, its in every.items() if "127.0.0.1" in its]
    return replace(found, name=owners[0] if owners else "", address=address)


def addresses() -> dict[str, list[str]]:
    """Every interface that has addresses, IPv4 before IPv6, as the system lists them.

    Empty where the system is not Linux.
    """
    found: dict[str, list[str]] = {}
    with suppress(OSError, ImportError):
        for name, address in _ipv4():
            found.setdefault(name, []).append(address)
    with suppress(OSError):
        for line in _IPV6.read_text().splitlines():
            digits, *_, name = line.split()
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
            local = address.startswith("fe80:")
            found.setdefault(name, []).append(address + f"%{name}" * local)
    return found


def _ipv4() -> list[tuple[str, str]]:
    from fcntl import ioctl  # noqa: PLC0415 - not on Windows

    room = array("B", bytes(_ENTRY * 512))
    where, length = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("iL", length, where)
        filled = ioctl(probe.fileno(), _SIOCGIFCONF, asked)
    content = room.tobytes()[: struct.unpack("iL", filled)[0]]
    entries = [content[i : i + _ENTRY] for i in range(0, len(content), _ENTRY)]
    return [
        (entry[:16].partition(b"\0")[0].decode(), socket.inet_ntoa(entry[20:24]))
        for entry in entries
    ]


def speed_of(name: str) -> int | None:
    """As the system says; one that is neither hardware nor a bond makes it up."""
    folder = _SETTINGS / name
    try:
        speed = int((folder / "speed").read_text())
    except (OSError, ValueError):  # loopback has none
        return None
    if not (folder / "device").exists() and not (folder / "bonding").exists():
        return None
    return speed * _MEGABIT if speed > 0 else None
