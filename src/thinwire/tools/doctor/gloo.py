"""Whether the ranks can make a process group over Gloo."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from thinwire.tools.doctor.bounded import within
from thinwire.tools.doctor.meeting import Meeting

_PATIENCE = timedelta(seconds=10)


def trial(meeting: Meeting) -> str:
    """Sum a number over all ranks, which call this together; why not, if it fails."""
    try:
        return within(2 * _PATIENCE.seconds, lambda: _counted(meeting))
    except (RuntimeError, ValueError) as error:
        return str(error).partition("\n")[0]
    except TimeoutError:
        return f"no answer in {2 * _PATIENCE.seconds} s"


def _counted(meeting: Meeting) -> str:
    dist.init_process_group(
        "gloo",
        store=PrefixStore("gloo", meeting.store),
        rank=meeting.rank,
        world_size=meeting.size,
        timeout=_PATIENCE,
    )
    try:
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
    finally:
        dist.destroy_process_group()
    return "" if int(ranks) == meeting.size else f"it counted {int(ranks)} ranks"
