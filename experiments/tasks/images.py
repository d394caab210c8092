"""Labelled images on a device, cropped and mirrored at random as they are drawn.

A batch is a handful of kernels: where each image is cropped and whether it is mirrored
is drawn once per epoch, and one gather makes the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.tasks.base import Batch, Carry, Recipe
from experiments.tasks.evaluating import evaluating
from experiments.tasks.order import PerEpoch, share, steps_of
from thinwire.errors import ConfigError

_PADDING = 4
_TEST_BATCH = 1000
CLASSES = 10


@dataclass(frozen=True)
class Labelled:
    """Images uint8 (count, channels, height, width), and their labels int64."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or not len(self.images):
            raise ConfigError(
                f"{len(self.images)} images and {len(self.labels)} labels do not "
                "belong together: fetch the files again"
            )
        if int(self.labels.max()) >= CLASSES or int(self.labels.min()) < 0:
            raise ConfigError(
                f"a label of {int(self.labels.max())} among classes 0 to {CLASSES - 1}"
            )

    def to(self, device: torch.device) -> "Labelled":
        return Labelled(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class _Drawn:
    """An epoch: which image comes when, cropped where, mirrored or not."""

    order: Tensor
    top: Tensor
    left: Tensor
    mirrored: Tensor


class ImageData:
    """Images to classify: `Data` of a task whose metric is the accuracy in percent."""

    def __init__(
        self, train: Labelled, test: Labelled, batch: int, *, smoothing: float = 0.0
    ) -> None:
        self.labels, self.test, self._batch = train.labels, test, batch
        self._smoothing = smoothing
        side = train.images.shape[-1]
        self._padded = functional.pad(train.images, [_PADDING] * 4)
        self._channels = torch.arange(train.images.shape[1], device=self.device)
        self._places = torch.arange(side, device=self.device)
        self._mean, self._std = _moments(train.images)
        self._epoch = PerEpoch(self._draw)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def steps(self, ranks: int) -> int:
        return steps_of(len(self.labels), self._batch, ranks)

    def batch(
        self, *, rank: int, ranks: int, epoch: int, step: int, seed: int
    ) -> Batch:
        drawn = self._epoch(seed, epoch)
        mine = share(rank, ranks, step, self._batch)
        chosen = drawn.order[mine]
        rows = drawn.top[mine, None] + self._places
        columns = torch.where(
            drawn.mirrored[mine, None], self._places.flip(0), self._places
        )
        columns = columns + drawn.left[mine, None]
        images = self._padded[
            chosen[:, None, None, None],
            self._channels[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        return self._normal(images), self.labels[chosen]

    def loss(
        self, model: nn.Module, batch: Batch, carry: Carry
    ) -> tuple[Tensor, Carry]:
        images, labels = batch
        loss = functional.cross_entropy(
            model(images), labels, label_smoothing=self._smoothing
        )
        return loss, carry

    def evaluate(self, model: nn.Module) -> float:
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        with evaluating(model):
            for images, labels in zip(
                torch.split(self.test.images, _TEST_BATCH),
                torch.split(self.test.labels, _TEST_BATCH),
                strict=True,
            ):
                right += (model(self._normal(images)).argmax(1) == labels).sum()
        return 100 * right.item() / len(self.test.labels)

    def final(self, model: nn.Module) -> dict[str, float]:
        return {}

    def _normal(self, images: Tensor) -> Tensor:
        return images.float().div_(255).sub_(self._mean).div_(self._std)

    def _draw(self, generator: torch.Generator) -> _Drawn:
        count = len(self.labels)
        order = torch.randperm(count, generator=generator)
        room = (2, count)
        corners = torch.randint(2 * _PADDING + 1, room, generator=generator)
        mirrored = torch.rand(count, generator=generator) < 0.5  # noqa: PLR2004
        parts = (part.to(self.device) for part in (order, *corners, mirrored))
        return _Drawn(*parts)


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Each channel's mean and deviation, without a copy of all images in floats."""
    sums = torch.zeros(2, images.shape[1], dtype=torch.float64, device=images.device)
    for some in torch.split(images, _TEST_BATCH):
        pixels = some.double().div_(255)
        sums[0] += pixels.sum((0, 2, 3))
        sums[1] += pixels.square_().sum((0, 2, 3))
    mean, square = sums * images.shape[1] / images.numel()
    deviation = (square - mean.square()).clamp_min(1e-6).sqrt()
    return mean.float().view(-1, 1, 1), deviation.float().view(-1, 1, 1)


class Loader(Protocol):
    """Reads the images to train on and those to test on."""

    def __call__(
        self, path: Path, device: torch.device, *, verify: bool
    ) -> tuple[Labelled, Labelled]: ...


@dataclass(frozen=True)
class ImageTask:
    """A network that classifies the images at a path."""

    name: str
    recipe: Recipe
    path: Path
    verify: bool
    load: Loader
    network: Callable[[], nn.Module]
    smoothing: float = 0.0  # of labels

    metric = "accuracy, %"
    higher_is_better = True

    def model(self) -> nn.Module:
        return self.network()

    def data(self, device: torch.device) -> ImageData:
        return ImageData(
            *self.load(self.path, device, verify=self.verify),
            self.recipe.batch,
            smoothing=self.smoothing,
        )
