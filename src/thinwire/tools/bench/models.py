"""Models of the literature to measure with, without weights or data: small images."""

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[nn.Module], Tensor]
Built = tuple[nn.Module, Loss]

_CLASSES = 10
_BATCH = 4

# Channels of VGG-16's convolutions; a pooling after each part.
_VGG = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16() -> Built:
    """VGG-16 for images of 32 x 32: 14.7 M parameters."""
    layers: list[nn.Module] = []
    before = 3
    for part in _VGG:
        for channels in part:
            layers += [nn.Conv2d(before, channels, 3, padding=1)]
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            before = channels
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, _CLASSES)), _on_images


def resnet20() -> Built:
    """ResNet-20 for images of 32 x 32: 0.27 M parameters."""
    blocks = [_Block(16, 16, 1) for _ in range(3)]
    blocks += [_Block(16, 32, 2), _Block(32, 32, 1), _Block(32, 32, 1)]
    blocks += [_Block(32, 64, 2), _Block(64, 64, 1), _Block(64, 64, 1)]
    first = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, _CLASSES)]
    return nn.Sequential(*first, *blocks, *last), _on_images


def mlp() -> Built:
    """Four layers of 1000 x 1000: much gradient for little work."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(1000, 1000), nn.ReLU()]
    return nn.Sequential(
        *layers
    ), lambda model: model(torch.randn(_BATCH, 1000)).square().mean()


MODELS: Mapping[str, Callable[[], Built]] = {
    "vgg16": vgg16,
    "resnet20": resnet20,
    "mlp": mlp,
}


def matrices(size: int) -> list[tuple[int, ...]]:
    """Shapes of `size` elements in all: VGG-16's convolutions, as often as needed.

    The last one is cut to whole rows; what is left is a vector.

    >>> matrices(1728 + 576 * 3 + 5)
    [(64, 3, 3, 3), (3, 64, 3, 3), (5,)]
    >>> sum(map(prod, matrices(14_700_000)))
    14700000
    """
    found: list[tuple[int, ...]] = []
    left = size
    for rows, *rest in cycle(_convolutions()):
        fit = min(rows, left // prod(rest))
        if fit:
            found.append((fit, *rest))
            left -= fit * prod(rest)
        if fit < rows:
            break
    return [*found, (left,)] if left else found


def _convolutions() -> Iterator[tuple[int, ...]]:
    before = 3
    for part in _VGG:
        for channels in part:
            yield channels, before, 3, 3
            before = channels


class _Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.convolve = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.more = channels - before
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        around = x[:, :, :: self.stride, :: self.stride]
        around = functional.pad(around, (0, 0, 0, 0, 0, self.more))
        return functional.relu(self.convolve(x) + around)


def _on_images(model: nn.Module) -> Tensor:
    images = torch.randn(_BATCH, 3, 32, 32)
    kinds = torch.randint(0, _CLASSES, (_BATCH,))
    return functional.cross_entropy(model(images), kinds)
