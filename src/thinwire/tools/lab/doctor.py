"""The requirements of a lab: which this machine lacks, and how to get them."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import LabError
from thinwire.tools.lab import commands
from thinwire.tools.lab.namespaces import Holder, privileged

_ROOT = "qdisc replace dev veth0 root"
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
_SYS = Path("/proc/sys")

# Where a system says that users may have no namespaces, what it says, and who does so.
_RESTRICTIONS = (
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor forbids them to users, as on Ubuntu 24.04",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "the kernel's setting forbids them to users",
        "kernel.unprivileged_userns_clone=1",
    ),
    (
        "user/max_user_namespaces",
        "0",
        "the kernel's setting allows none",
        "user.max_user_namespaces=10000",
    ),
)
_CONTAINER_FILES = (Path("/.dockerenv"), Path("/run/.containerenv"))


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
        Check("Linux", sys.platform == "linux", "a Linux machine or virtual machine")
    ]
    checks += [
        Check(tool, commands.find(tool) is not None, f"install {package}")
        for tool, package in _PACKAGES.items()
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


def check_netem() -> None:
    """Refuse delay and loss where the kernel has neither."""
    for check in examine():
        if check.what == "netem" and not check.there:
            raise LabError(
                f"no delay and no loss can be had here: {check.remedy}; or leave them "
                "out"
            )


def _examine_kernel() -> Iterator[Check]:
    with _scratch() as pid:
        yield Check("namespaces", pid is not None, _why_no_namespaces())
        if pid is None:
            return
        bridge = _works("ip", pid, "link add bridge0 type bridge")
        yield Check("bridge", bridge, _kernel("CONFIG_BRIDGE", "bridge"))
        veth = _works("ip", pid, "link add veth0 type veth peer name veth1")
        yield Check("veth", veth, _kernel("CONFIG_VETH", "veth"))
        if not veth:
            return
        tbf = _works("tc", pid, f"{_ROOT} tbf rate 1mbit burst 2000 limit 9000")
        yield Check("tbf", tbf, _kernel("CONFIG_NET_SCH_TBF", "sch_tbf"))
        netem = _works("tc", pid, f"{_ROOT} netem delay 1ms")
        remedy = _kernel("CONFIG_NET_SCH_NETEM", "sch_netem")
        yield Check("netem", netem, remedy, optional=True)


@contextmanager
def _scratch() -> Iterator[int | None]:
    """A process on a network to try things in; None where there can be none."""
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "hosts")
        try:
            holder = Holder.start(1, names, Path(folder, "record"))
        except LabError:
            yield None
            return
        try:
            yield holder.hosts[0]
        finally:
            holder.end()


def _works(tool: str, pid: int, line: str) -> bool:
    try:
        commands.batch(tool, pid, [line])
    except LabError:
        return False
    return True


def _why_no_namespaces() -> str:
    """Who forbids them, as far as can be seen, and the remedy."""
    if privileged():
        return "a kernel with CONFIG_NET_NS, CONFIG_PID_NS and CONFIG_USER_NS"
    for name, forbidden, reason, setting in _RESTRICTIONS:
        file = _SYS / name
        if file.exists() and file.read_text().strip() == forbidden:
            return f"{reason}: sudo sysctl -w {setting}, or run it with sudo"
    if any(file.exists() for file in _CONTAINER_FILES):
        return (
            "this container may make none: start it with --privileged, or with "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
            "--security-opt systempaths=unconfined"
        )
    return (
        "this user may make none: run it with sudo, or allow user namespaces "
        "(CONFIG_USER_NS in the kernel, no seccomp filter that forbids them)"
    )


def _kernel(option: str, module: str) -> str:
    return f"a kernel with {option}; as a module: sudo modprobe {module}"
