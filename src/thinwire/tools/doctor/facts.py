"""What one rank knows about itself, as plain values that travel between ranks."""

import os
import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

from thinwire.tools.bench.machine import machine
from thinwire.tools.bench.ranks import host_id, machine_id
from thinwire.tools.doctor import interface, kernel_cache, names
from thinwire.tools.doctor.interface import Interface
from thinwire.tools.doctor.kernel_cache import KernelCache
from thinwire.tools.doctor.names import Name
from thinwire.version import __version__

Plain = TypeVar("Plain")

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class Facts:
    """One rank: its host, versions, network and processors.

    Every field has a default: ranks of different versions must understand each other.
    """

    host: Name = field(default_factory=Name)
    localhost: Name = field(default_factory=Name)
    network: str = ""  # the same for ranks that share a host's interfaces
    machine: str = ""  # the same for ranks that share processors
    processor: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    interface: Interface = field(default_factory=Interface)
    ipv6: bool = False  # whether there is a loopback address of IPv6
    cores: tuple[int, ...] = ()  # those that this rank may use
    threads: int = 0  # of torch
    omp: str = ""  # OMP_NUM_THREADS
    huge_pages: str = ""  # "" where the system does not say
    cache: KernelCache = field(default_factory=KernelCache)
    port: int = 0  # where it answers other ranks; 0: nowhere

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "Facts":
        """From JSON; what is not known is left out."""
        parts: dict[str, type[Any]] = {"host": Name, "localhost": Name}
        parts |= {"interface": Interface, "cache": KernelCache}
        made = {n: known(part, plain.get(n, {})) for n, part in parts.items()}
        return known(cls, {**plain, **made})


def collect() -> Facts:
    """The facts of this process."""
    host = names.resolved(socket.gethostname())
    return Facts(
        host,
        names.resolved("localhost"),
        host_id(),
        machine_id(),
        machine(),
        versions=_versions(),
        interface=interface.used(host),
        ipv6=names.bindable("::1"),
        cores=_cores(),
        threads=torch.get_num_threads(),
        omp=os.environ.get("OMP_NUM_THREADS", ""),
        huge_pages=_huge_pages(),
        cache=kernel_cache.found(),
    )


def known(cls: type[Plain], plain: Mapping[str, Any]) -> Plain:
    """A dataclass from those values that it has fields for; lists become tuples."""
    names_ = {each.name for each in fields(cls)}  # type: ignore[arg-type]
    return cls(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in plain.items()
            if name in names_
        }
    )


def _versions() -> dict[str, str]:
    versions = {"thinwire": __version__, "torch": str(torch.__version__)}
    versions["python"] = platform.python_version()
    for package in ("numba", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return versions


def _cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _huge_pages() -> str:
    try:
        chosen = re.search(r"\[(\w+)\]", _HUGE_PAGES.read_text())
    except OSError:
        return ""
    return chosen[1] if chosen else ""
