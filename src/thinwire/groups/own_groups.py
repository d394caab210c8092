"""Process groups made for one user: by all their ranks together, ended by each alone.

To end a group of Gloo's is local: its threads end and its connections close, and a peer
that still waits for this rank gets an error. One of NCCL's is aborted, which is local
too, but may interrupt what peers still have on the device.
"""

import threading
from datetime import timedelta
from typing import Any, TypeGuard, cast

import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    _abort_process_group,
    _world,
)


def is_known(group: object) -> TypeGuard[dist.ProcessGroup]:
    """Whether it is a process group that this rank is in, and that has not ended."""
    if not isinstance(group, dist.ProcessGroup) or group not in _world.pg_map:
        return False
    return dist.get_rank(group) >= 0


class _Ended:
    """Keeps the place of a group that ended among the names of this process.

    torch names a group of some ranks by how many groups there are, and a name that came
    back would find the old group's addresses in the store.
    """

    def shutdown(self) -> None:
        """Nothing: torch calls this when the default group ends."""


def next_name(parent: dist.ProcessGroup) -> int:
    """By what torch will name the next group of these ranks, which must agree on it."""
    return len(_world.pg_names) if _is_partial(parent) else int(_world.group_count)


def make(parent: dist.ProcessGroup, timeout: float) -> dist.ProcessGroup:
    """A new group of the ranks of `parent`."""
    try:
        made = dist.new_group(
            dist.get_process_group_ranks(parent),
            timeout=timedelta(seconds=timeout),
            backend=dist.get_backend(parent),
            use_local_synchronization=_is_partial(parent),
        )
    except BaseException:
        _keep_place()
        raise
    return cast(dist.ProcessGroup, made)


def end(group: dist.ProcessGroup) -> None:
    """End a group, unless it ended with the default one."""
    if group not in _world.pg_map:
        return
    nccl = "nccl" in dist.get_backend_config(group)
    _keep_place()
    (_abort_process_group if nccl else dist.destroy_process_group)(group)


def end_later(group: dist.ProcessGroup) -> None:
    """End a group when Python's collector finds that nothing uses it."""
    if isinstance(threading.current_thread(), threading._DummyThread):  # noqa: SLF001
        # A thread of the backend's, which a group that ends would wait for.
        threading.Thread(target=end, args=(group,)).start()
    else:
        end(group)


def _is_partial(parent: dist.ProcessGroup) -> bool:
    return parent.size() < dist.get_world_size()


def _keep_place() -> None:
    place: Any = _Ended()
    name: Any = f"ended {id(place)}"  # for which newer torch has a type, older has none
    _world.pg_names[place] = name
