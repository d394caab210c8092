"""The network of a lab: a bridge, and a shaped link from it to every host.

Every host is a namespace with one interface. Its other end is a port of a bridge in a
namespace of its own, so the machine itself has no interface of the lab's, and nothing
that the hosts send can leave it. What a host sends is shaped as it leaves the host,
what it receives as it leaves the bridge. Delay and loss are added once, as a message
leaves its host.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from thinwire.errors import LabError
from thinwire.tools.lab import commands
from thinwire.tools.lab.record import Record
from thinwire.tools.lab.shaping import Shape, disciplines, shapes

INTERFACE = "eth0"
_BRIDGE = "bridge"


def build(record: Record) -> None:
    """Join the hosts, which know nothing but themselves yet."""
    links = list(zip(record.pids, shapes(record.rates), strict=True))
    commands.batch("ip", record.switch, _switch(record))
    ports = [
        line
        for host, (_, shape) in enumerate(links)
        for line in disciplines(_port(host), shape)
    ]
    commands.batch("tc", record.switch, ports)
    for host, (pid, shape) in enumerate(links):
        commands.batch("ip", pid, _host(record.address(host), shape))
        own = disciplines(INTERFACE, shape, record.delay, record.loss)
        commands.batch("tc", pid, own)


def cut(record: Record, host: int) -> None:
    """Take a host's port off the bridge.

    The host's link stays up: as with a fault further away, no connection is closed.
    """
    _set_port(record, host, "nomaster")


def heal(record: Record, host: int) -> None:
    """Undo a cut."""
    _set_port(record, host, "master", _BRIDGE)


def hosts_cut_off(record: Record) -> list[int]:
    """The hosts that were cut off and not healed."""
    shown = commands.run("ip", "-j", "link", "show", pid=record.switch)
    joined = {link["ifname"] for link in json.loads(shown) if "master" in link}
    return [host for host in range(record.hosts) if _port(host) not in joined]


def _set_port(record: Record, host: int, *setting: str) -> None:
    if not 0 <= host < record.hosts:
        raise LabError(
            f"there is no host {host}: lab {record.name!r} has 0 to {record.hosts - 1}"
        )
    commands.run("ip", "link", "set", _port(host), *setting, pid=record.switch)


def _switch(record: Record) -> Iterator[str]:
    # The kernel must make no addresses of its own and announce them: only the hosts'
    # traffic counts. Said together with "up" it would come too late.
    yield f"link add {_BRIDGE} type bridge"
    yield f"link set {_BRIDGE} addrgenmode none"
    yield f"link set {_BRIDGE} up"
    for host, shape in enumerate(shapes(record.rates)):
        port, peer = _port(host), f"name {INTERFACE} netns {record.pids[host]}"
        yield f"link add {port} type veth peer {peer}"
        yield f"link set {port} gso_max_size {shape.segments}"
        yield f"link set {port} addrgenmode none"
        yield f"link set {port} master {_BRIDGE} up"


def _host(address: str, shape: Shape) -> Iterator[str]:
    yield "link set lo up"
    yield f"link set {INTERFACE} gso_max_size {shape.segments}"
    yield f"link set {INTERFACE} addrgenmode none"
    yield f"link set {INTERFACE} up"
    yield f"address add {address}/24 dev {INTERFACE}"


def names(record: Record) -> str:
    """The file of names on every host: the machine's, and a name for each host."""
    own = Path("/etc/hosts")
    known = own.read_text() if own.exists() else ""
    names = [f"{record.address(host)} host{host}\n" for host in range(record.hosts)]
    # Once more for sockets that speak both IPv4 and IPv6, as torch's.
    return "".join([*names, *(f"::ffff:{name}" for name in names), known])


def _port(host: int) -> str:
    return f"port{host}"
