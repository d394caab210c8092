"""Host names, resolved in bounded time, and whether their addresses are of use here."""

import socket
from dataclasses import dataclass
from time import perf_counter

from thinwire.tools.doctor.bounded import within

LONGEST = 5.0  # seconds to wait for a name server


@dataclass(frozen=True, slots=True)
class Name:
    """A host name, its addresses, and which of them a socket here can be bound to."""

    name: str = ""
    addresses: tuple[str, ...] = ()
    bindable: tuple[str, ...] = ()
    seconds: float = 0.0


def resolved(name: str) -> Name:
    """Look a name up; it has no addresses if that fails or takes too long.

    >>> "127.0.0.1" in resolved("localhost").bindable
    True
    """
    start = perf_counter()
    try:
        found = within(LONGEST, lambda: _look_up(name))
    except (OSError, TimeoutError):
        found = []
    addresses = tuple(dict.fromkeys(found))
    seconds = perf_counter() - start
    return Name(name, addresses, tuple(filter(bindable, addresses)), seconds)


def bindable(address: str) -> bool:
    """Whether the address is one of this host's."""
    try:
        with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def family_of(address: str) -> socket.AddressFamily:
    """The family of an address.

    >>> family_of("::1").name, family_of("127.0.0.1").name
    ('AF_INET6', 'AF_INET')
    """
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _look_up(name: str) -> list[str]:
    every = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in every]
