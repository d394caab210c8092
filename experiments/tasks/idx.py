"""Fashion-MNIST, and MNIST itself: grey images of 28 x 28 in IDX files.

IDX: two zero bytes, a type, the number of dimensions, their sizes as big-endian 32-bit
integers, then the elements. Images get a black frame of two pixels: 32 x 32, as models
for CIFAR-10 expect.
"""

import math
import struct
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from experiments.tasks.files import Files, Source
from experiments.tasks.images import Labelled
from thinwire.errors import ConfigError

SOURCE = Source(
    "Fashion-MNIST",
    "https://github.com/zalandoresearch/fashion-mnist",
    "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz "
    "and t10k-labels-idx1-ubyte.gz",
    {
        "train-images-idx3-ubyte": "sha256:"
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "sha256:"
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "sha256:"
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "sha256:"
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)
_FRAME = 2
_UNSIGNED_BYTES = 8


def load(
    path: Path, device: torch.device, *, verify: bool = True
) -> tuple[Labelled, Labelled]:
    """Images to train on and to test on."""
    files = Files(path, SOURCE, verify)
    train, test = (
        Labelled(
            _framed(read(files, f"{part}-images-idx3-ubyte", 3)),
            read(files, f"{part}-labels-idx1-ubyte", 1).long(),
        ).to(device)
        for part in ("train", "t10k")
    )
    return train, test


def read(files: Files, name: str, dimensions: int) -> Tensor:
    """The uint8 elements of an IDX file."""
    content = files.read(name)
    start = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, _UNSIGNED_BYTES, dimensions]):
        raise ConfigError(
            f"{name} in {files.path} begins with {content[:4].hex()}: not an IDX file "
            f"of bytes in {dimensions} dimensions. {SOURCE.instructions}"
        )
    sizes = struct.unpack(f">{dimensions}i", content[4:start].ljust(start - 4, b"\0"))
    if len(content) != start + math.prod(sizes):
        raise ConfigError(
            f"{name} in {files.path} has {len(content)} bytes, but announces "
            f"{start + math.prod(sizes)}: fetch it again"
        )
    elements = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start)
    return elements.view(sizes)


def _framed(images: Tensor) -> Tensor:
    return functional.pad(images, [_FRAME] * 4)[:, None]
