"""The precision of matrix products, for every command that trains."""

import torch


def be_quick(device: torch.device) -> None:
    """On a GPU, matrix products in TF32 and the convolutions that time best.

    So two runs on a GPU agree to rounding, not to the bit. On a processor nothing is
    changed: there, runs are compared bit for bit.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
