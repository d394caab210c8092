"""The namespaces, the bridge and the shaped links of a lab.

Every host is a namespace with one interface. Its other end is a port of a bridge in a
namespace of its own, so the machine itself has no interface of the lab's, and nothing
that the hosts send can leave it. What a host sends is shaped as it leaves the host,
what it receives as it leaves the bridge.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from thinwire.errors import LabError
from thinwire.tools.lab import commands
from thinwire.tools.lab.record import Record
from thinwire.tools.lab.shaping import Shape, shapes

INTERFACE = "eth0"
_BRIDGE = "bridge"
_ROUNDS = 5  # of killing: killed processes may have started others meanwhile


def build(record: Record) -> None:
    """Create everything; after an error, `remove` removes what exists."""
    record.names.write_text(_names(record))
    for namespace in record.namespaces:
        commands.run("ip", "netns", "add", namespace)
    commands.batch("ip", record.switch, _switch(record))
    links = list(enumerate(shapes(record.rates)))
    ports = [_shape(_port(host), shape) for host, shape in links]
    commands.batch("tc", record.switch, ports)
    for host, shape in links:
        namespace = record.namespace(host)
        commands.batch("ip", namespace, _host(record.address(host), shape))
        commands.batch("tc", namespace, [_shape(INTERFACE, shape)])


def remove(record: Record) -> None:
    """End the processes of the hosts and remove what exists of the lab."""
    there = existing()
    for namespace in record.namespaces:
        if namespace in there:
            remove_namespace(namespace)


def existing() -> set[str]:
    """The names of all namespaces."""
    lines = commands.run("ip", "netns", "list").splitlines()
    return {line.split()[0] for line in lines if line.strip()}


def remove_namespace(namespace: str) -> None:
    """Kill its processes, which would otherwise keep running, and remove it."""
    _end_processes(namespace)
    commands.run("ip", "netns", "delete", namespace)


def _end_processes(namespace: str) -> None:
    for _ in range(_ROUNDS):
        pids = commands.run("ip", "netns", "pids", namespace).split()
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


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
    shown = commands.run("ip", "-n", record.switch, "-j", "link", "show")
    joined = {link["ifname"] for link in json.loads(shown) if "master" in link}
    return [host for host in range(record.hosts) if _port(host) not in joined]


def _set_port(record: Record, host: int, *setting: str) -> None:
    if not 0 <= host < record.hosts:
        raise LabError(
            f"there is no host {host}: lab {record.name!r} has 0 to {record.hosts - 1}"
        )
    commands.run("ip", "-n", record.switch, "link", "set", _port(host), *setting)


def _switch(record: Record) -> Iterator[str]:
    # The kernel must make no addresses of its own and announce them: only the hosts'
    # traffic counts. Said together with "up" it would come too late.
    yield f"link add {_BRIDGE} type bridge"
    yield f"link set {_BRIDGE} addrgenmode none"
    yield f"link set {_BRIDGE} up"
    for host, shape in enumerate(shapes(record.rates)):
        port, peer = _port(host), f"name {INTERFACE} netns {record.namespace(host)}"
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


def _names(record: Record) -> str:
    """The lines of the machine's file, and a name for each host."""
    own = Path("/etc/hosts")
    known = own.read_text() if own.exists() else ""
    names = [f"{record.address(host)} host{host}\n" for host in range(record.hosts)]
    # Once more for sockets that speak both IPv4 and IPv6, as torch's.
    return "".join([*names, *(f"::ffff:{name}" for name in names), known])


def _shape(interface: str, shape: Shape) -> str:
    return f"qdisc replace dev {interface} root {shape.discipline()}"


def _port(host: int) -> str:
    return f"port{host}"
