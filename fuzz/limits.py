"""What decoding a packet of a few kilobytes may take."""

import resource
from pathlib import Path

_MOST_MEMORY = 2**30


def limit_memory() -> None:
    """Let this process take no more than a gigabyte beyond what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
