"""Memory for vectors that stay, and are gone through, and jumped about in, every step.

Where the system lends pages of 2 MB, one entry of the page table stands for as much as
512 of the usual ones do: NumPy asks for them from 4 MB on, torch does not.
"""

import numpy as np
import torch
from torch import Tensor

_LINE = 16  # elements in a line of the cache: vectors begin with one, as torch's do


def zeros(size: int, device: torch.device | None = None) -> Tensor:
    """A vector of float32 zeros. On a processor nothing is touched until it is used.

    >>> zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    if device is not None and device.type != "cpu":
        return torch.zeros(size, device=device)
    room = np.zeros(size + _LINE, np.float32)
    start = -room.ctypes.data // room.itemsize % _LINE
    return torch.from_numpy(room[start : start + size])
