"""JPEG coefficients to pixels, for images of 32 x 32 with halved colour.

An .npz of the quantised coefficients of many small JPEG files is a third of the size of
the files, loses nothing, and needs no JPEG library: what is left of decoding is a
product with a matrix, a filter and a change of colours, here on any device.

`Y` int8 (8, 8, count, 4, 4): luma, [frequency down, across, image, block row, column];
`C` int8 (8, 8, 2, count, 2, 2): the same for Cb and Cr; `over_at`, `over_val`: places
(in the flat `Y`) and values of what does not fit int8; `qt` (2, 8, 8): quantisation
tables of luma and colour; `label`.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_IMAGES_AT_ONCE = 10_000
FIELDS = ("Y", "C", "over_at", "over_val", "qt", "label")


def pixels_of(coefficients: Mapping[str, Any], device: torch.device) -> Tensor:
    """The images as uint8 (count, 3, 32, 32), on the device."""
    luma = coefficients["Y"].astype(np.int16)
    luma.reshape(-1)[coefficients["over_at"]] = coefficients["over_val"]
    colour = coefficients["C"]
    tables = torch.as_tensor(coefficients["qt"].astype(np.float32), device=device)
    images = []
    for start in range(0, luma.shape[2], _IMAGES_AT_ONCE):
        part = slice(start, start + _IMAGES_AT_ONCE)
        grey = _plane(luma[:, :, part], tables[0])
        blue, red = (
            _doubled(_plane(colour[:, :, which, part], tables[1])) - 128
            for which in (0, 1)
        )
        images.append(_rgb(grey, blue, red))
    return torch.cat(images)


def _plane(quantised: np.ndarray[Any, Any], table: Tensor) -> Tensor:
    """Coefficients (8, 8, count, rows, columns) to samples (count, height, width)."""
    blocks = torch.as_tensor(np.ascontiguousarray(quantised), device=table.device)
    cosines = _cosines(table.device)
    blocks = blocks.permute(2, 3, 4, 0, 1) * table
    samples = cosines.T @ blocks @ cosines
    count, rows, columns = samples.shape[:3]
    plane = samples.transpose(2, 3).reshape(count, 8 * rows, 8 * columns)
    return (plane.round() + 128).clamp_(0, 255)


def _cosines(device: torch.device) -> Tensor:
    """The matrix of the 8-point discrete cosine transform, orthonormal."""
    frequency = torch.arange(8, dtype=torch.float64)[:, None]
    place = torch.arange(8, dtype=torch.float64)
    matrix = torch.cos((2 * place + 1) * frequency * math.pi / 16) / 2
    matrix[0] /= math.sqrt(2)
    return matrix.to(device, torch.float32)


def _doubled(plane: Tensor) -> Tensor:
    """Twice as many samples each way: 3/4 of the nearest one, 1/4 of the next."""
    for _ in range(2):
        padded = functional.pad(plane, [0, 0, 1, 1], mode="replicate")
        before, after = padded[:, :-2], padded[:, 2:]
        pair = torch.stack([3 * plane + before, 3 * plane + after], dim=2) / 4
        plane = pair.flatten(1, 2).transpose(1, 2)
    return plane


def _rgb(grey: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    """From Y, Cb and Cr, the latter around 0, as JFIF has it."""
    channels = (
        grey + 1.402 * red,
        grey - 0.344136 * blue - 0.714136 * red,
        grey + 1.772 * blue,
    )
    return (torch.stack(channels, dim=1) + 0.5).clamp_(0, 255).to(torch.uint8)
