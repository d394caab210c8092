"""The requirements of a lab: which this machine lacks, and how to get them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from thinwire.errors import LabError
from thinwire.tools.lab import commands
from thinwire.tools.lab.record import PREFIX

_ROOT = "qdisc replace dev veth0 root"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing a lab needs: whether it is there, or how to get it."""

    what: str
    there: bool
    remedy: str
    optional: bool = False


def examine() -> list[Check]:
    """Check all requirements; skips those that need one that is missing."""
    checks = [
        Check("Linux", sys.platform == "linux", "a Linux machine or virtual machine"),
        Check("root", _is_root(), "run it with sudo, or in a privileged container"),
    ]
    checks += [
        Check(tool, commands.find(tool) is not None, "install iproute2")
        for tool in ("ip", "tc")
    ]
    if all(check.there for check in checks):
        checks += _examine_kernel()
    return checks


def missing() -> list[str]:
    """The missing requirements and how to get them; empty if there are none."""
    return [
        f"{check.what}: {check.remedy}"
        for check in examine()
        if not check.there and not check.optional
    ]


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _examine_kernel() -> Iterator[Check]:
    with _scratch() as namespace:
        remedy = "a kernel with CONFIG_NET_NS; in a container, one that is privileged"
        yield Check("network namespaces", namespace is not None, remedy)
        if namespace is None:
            return
        bridge = _works("ip", namespace, "link add bridge0 type bridge")
        yield Check("bridge", bridge, _kernel("CONFIG_BRIDGE", "bridge"))
        veth = _works("ip", namespace, "link add veth0 type veth peer name veth1")
        yield Check("veth", veth, _kernel("CONFIG_VETH", "veth"))
        if not veth:
            return
        tbf = _works("tc", namespace, f"{_ROOT} tbf rate 1mbit burst 2000 limit 9000")
        yield Check("tbf", tbf, _kernel("CONFIG_NET_SCH_TBF", "sch_tbf"))
        netem = _works("tc", namespace, f"{_ROOT} netem delay 1ms")
        remedy = _kernel("CONFIG_NET_SCH_NETEM", "sch_netem")
        yield Check("netem", netem, remedy, optional=True)


@contextmanager
def _scratch() -> Iterator[str | None]:
    """A namespace to try things in; None where there can be none."""
    name = f"{PREFIX}-doctor-{os.getpid()}"
    try:
        commands.run("ip", "netns", "add", name)
    except LabError:
        yield None
        return
    try:
        yield name
    finally:
        with suppress(LabError):
            commands.run("ip", "netns", "delete", name)


def _works(tool: str, namespace: str, line: str) -> bool:
    try:
        commands.batch(tool, namespace, [line])
    except LabError:
        return False
    return True


def _kernel(option: str, module: str) -> str:
    return f"a kernel with {option}; as a module: modprobe {module}"
