"""Models to measure with, on random inputs."""

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.tools.models import VGG16, ResNet20
from thinwire.tools.models.vgg import STAGES

Loss = Callable[[nn.Module], Tensor]
Built = tuple[nn.Module, Loss]

_CHANNELS = 3
_CLASSES = 10
_BATCH = 4


def vgg16() -> Built:
    """VGG-16 for images of 32 x 32: 14.7 M parameters."""
    return VGG16(_CHANNELS, _CLASSES), _image_loss


def resnet20() -> Built:
    """ResNet-20 for images of 32 x 32: 0.27 M parameters."""
    return ResNet20(_CHANNELS, _CLASSES), _image_loss


def mlp() -> Built:
    """Four layers of 1000 x 1000: a large gradient for little computation."""
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
    before = _CHANNELS
    for channels, count in STAGES:
        for _ in range(count):
            yield channels, before, 3, 3
            before = channels


def _image_loss(model: nn.Module) -> Tensor:
    images = torch.randn(_BATCH, _CHANNELS, 32, 32)
    labels = torch.randint(0, _CLASSES, (_BATCH,))
    return functional.cross_entropy(model(images), labels)
