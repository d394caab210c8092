"""Half precision where it is fast: bfloat16 on a GPU, float32 on a processor."""

from contextlib import AbstractContextManager

import torch


def half(device: torch.device) -> AbstractContextManager[object]:
    """Autocast to bfloat16 on a GPU; on a processor nothing changes."""
    return torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"
    )
