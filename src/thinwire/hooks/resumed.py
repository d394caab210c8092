"""Whether a run has resumed its optimizer, and so should have its residuals too."""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor
from torch.optim import SGD, Optimizer

LOST = (
    "the optimizer goes on from an earlier run, but nothing was loaded into the state "
    "that attach returned: what the ranks of that run had not delivered is lost. Call "
    "state.load(folder) or state.load_state_dict(saved) before the first step; where a "
    "framework saves rank 0's objects only, give it state.all_ranks. If the earlier "
    "run was without thinwire, nothing is lost"
)


def is_resumed(optimizer: Optimizer, ids: Collection[int]) -> bool:
    """Whether the states of these parameters, by id, were loaded in this process.

    A step counts in place, and torch counts the changes of a tensor: a count that is
    larger was not reached here. So a run that was dense before `attach` is not meant.
    """
    for group in optimizer.param_groups:
        for param in group["params"]:
            state = optimizer.state.get(param) if id(param) in ids else None
            if state:
                return _is_loaded(optimizer, group, state)
    return False


def _is_loaded(
    optimizer: Optimizer, group: Mapping[str, Any], state: Mapping[str, Any]
) -> bool:
    # Replays of a CUDA graph, and fused steps of SGD, do not count as changes.
    if group.get("capturable"):
        return False
    step, buffer = state.get("step"), state.get("momentum_buffer")
    if isinstance(step, Tensor):
        return bool(step.item() > step._version)  # noqa: SLF001 - no public way
    if isinstance(optimizer, SGD) and isinstance(buffer, Tensor):
        # Each step from the second on changes it twice.
        return not group.get("fused") and buffer._version <= 1  # noqa: SLF001
    return False
