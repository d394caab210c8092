"""ResNet-20 for images of 32 x 32: 269,722 parameters with three channels.

He, Zhang, Ren, Sun, Deep Residual Learning, CVPR 2016, section 4.2: a convolution, nine
blocks of two in three stages of 16, 32 and 64 channels, shortcuts without parameters.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

_BLOCKS_PER_STAGE = 3
_WIDTHS = (16, 32, 64)


class ResNet20(nn.Module):
    """Images in, logits out."""

    def __init__(self, channels: int, classes: int = 10) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        before = _WIDTHS[0]
        for width in _WIDTHS:
            for number in range(_BLOCKS_PER_STAGE):
                halve = number == 0 and width != before
                blocks.append(Block(before if halve else width, width))
            before = width
        self.first = convolution(channels, _WIDTHS[0])
        self.blocks = nn.Sequential(*blocks)
        self.logits = nn.Linear(_WIDTHS[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.first(images)))
        logits: Tensor = self.logits(x.mean((2, 3)))
        return logits


class Block(nn.Module):
    """Two convolutions, added to the input; where it widens, it halves the image."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if before == width else 2
        self.one = convolution(before, width, self.stride)
        self.two = convolution(width, width)
        self.wider = width - before

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(functional.relu(self.one(x)))
        if self.wider:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.wider))
        return torch.relu(x + y)


def convolution(before: int, width: int, stride: int = 1) -> nn.Sequential:
    """3 x 3, and a BatchNorm, which makes a bias useless."""
    weights = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(weights.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(weights, nn.BatchNorm2d(width))
