"""Problems that one rank's facts show."""

from collections.abc import Iterator

from thinwire.tools.doctor import interface, kernel_cache
from thinwire.tools.doctor.facts import Facts
from thinwire.tools.doctor.names import Name
from thinwire.tools.doctor.problem import Problem
from thinwire.tools.quantities import rate_text

_SLOW_LOOKUP = 1.0  # seconds
_MUCH_FASTER = 2


def problems(rank: int, facts: Facts) -> Iterator[Problem]:
    """All problems of this rank."""
    checks = (_interface, _faster, _names, _huge_pages, _cache)
    for check in checks:
        for what, remedy in check(facts):
            yield Problem(what, remedy, (rank,))


def _interface(facts: Facts) -> Iterator[tuple[str, str]]:
    used, names = facts.interface, interface.VARIABLE
    if used.address or not used.present:  # nothing is known where it is not Linux
        return
    others = ", ".join(used.present)
    yield (
        f"{names} is {used.name!r}: no interface of this name has an address",
        f"export {names}=NAME; those with an address: {others}",
    )


def _faster(facts: Facts) -> Iterator[tuple[str, str]]:
    used = facts.interface
    speeds = used.speeds
    if not used.speed:
        return
    best = max(speeds, key=lambda name: speeds[name])
    if speeds[best] >= _MUCH_FASTER * used.speed:
        yield (
            f"Gloo uses {used.name} ({rate_text(used.speed)}), but {best} has "
            f"{rate_text(speeds[best])}",
            f"if {best} connects the hosts: export {interface.VARIABLE}={best}",
        )


def _names(facts: Facts) -> Iterator[tuple[str, str]]:
    host, local = facts.host, facts.localhost
    if not host.bindable and not facts.interface.named:
        found = f" to {', '.join(host.addresses)}, not an address of this host"
        yield (
            f"the host name {host.name!r} does not resolve"
            + (found if host.addresses else "")
            + "; Gloo uses loopback, which no other host can reach",
            f"put its address into /etc/hosts, or export {interface.VARIABLE}=NAME",
        )
    if "127.0.0.1" not in local.addresses and "::1" not in local.bindable:
        yield "localhost does not resolve", "put '127.0.0.1 localhost' into /etc/hosts"
    elif "::1" in local.addresses and not facts.ipv6:
        yield (
            "localhost resolves to ::1, but IPv6 is off here",
            "remove '::1 localhost' from /etc/hosts, or switch IPv6 on",
        )
    yield from _slow(host)
    yield from _slow(local)


def _slow(name: Name) -> Iterator[tuple[str, str]]:
    if name.seconds > _SLOW_LOOKUP:
        yield (
            f"to resolve {name.name!r} took {name.seconds:.0f} s",
            "put it into /etc/hosts, or repair the name server of /etc/resolv.conf",
        )


def _huge_pages(facts: Facts) -> Iterator[tuple[str, str]]:
    if facts.huge_pages == "never":
        yield (
            "huge pages are off: adding to the residual is slower",
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )


def _cache(facts: Facts) -> Iterator[tuple[str, str]]:
    cache, variable = facts.cache, kernel_cache.VARIABLE
    if cache.why:
        yield (
            f"compiled kernels cannot be kept: {cache.why}",
            f"export {variable}=DIR, a directory that can be written",
        )
    elif cache.refused:
        yield (
            f"{variable} is {cache.refused!r}, which cannot be written; kernels are "
            f"kept in {cache.folder}",
            f"make it writable, or unset {variable}",
        )
