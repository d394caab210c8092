"""CIFAR-10: 60,000 colour images of 32 x 32 in ten classes, in any of its forms.

The two archives of its home page or what is in them, or train.npz and test.npz with
either `images` (count, 32, 32, 3) and `labels`, or JPEG coefficients.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.tasks import jpeg
from experiments.tasks.files import Files, Source, archive_in
from experiments.tasks.images import Labelled
from thinwire.errors import ConfigError

SOURCE = Source(
    "CIFAR-10",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "cifar-10-python.tar.gz or cifar-10-binary.tar.gz",
    {
        "cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a",
        "cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530",
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
)
_ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_IMAGE = (3, 32, 32)
_PIXELS = 3072


def load(
    path: Path, device: torch.device, *, verify: bool = True
) -> tuple[Labelled, Labelled]:
    """Images to train on and to test on."""
    files = Files(archive_in(path, *_ARCHIVES), SOURCE, verify)
    for first, reader in (
        ("data_batch_1", _pickled),
        ("data_batch_1.bin", _binary),
        ("train.npz", _npz),
    ):
        if files.find(first):
            return _both(files, reader, device)
    raise SOURCE.missing(path, "there is no data_batch_1, data_batch_1.bin, train.npz")


Reader = Callable[[Files, bool, torch.device], tuple[Tensor, Tensor]]


def _both(
    files: Files, reader: Reader, device: torch.device
) -> tuple[Labelled, Labelled]:
    train, test = (
        Labelled(images.to(device), labels.to(device, torch.int64))
        for images, labels in (reader(files, part, device) for part in (True, False))
    )
    return train, test


def _pickled(files: Files, train: bool, _: torch.device) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    images, labels = [], []
    for name in _BATCHES if train else ("test_batch",):
        batch = _unpickled(name, files.read(name))
        images.append(torch.as_tensor(np.asarray(batch[b"data"], dtype=np.uint8)))
        labels.append(torch.as_tensor(batch[b"labels"]))
    return torch.cat(images).view(-1, *_IMAGE), torch.cat(labels)


def _binary(files: Files, train: bool, _: torch.device) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    names = [f"{name}.bin" for name in _BATCHES] if train else ["test_batch.bin"]
    content = b"".join(files.read(name) for name in names)
    if len(content) % (1 + _PIXELS):
        raise ConfigError(
            f"{names[0]} and so on in {files.path} hold {len(content)} bytes, not a "
            f"multiple of {1 + _PIXELS}: fetch them again"
        )
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    rows = rows.view(-1, 1 + _PIXELS)
    return rows[:, 1:].reshape(-1, *_IMAGE), rows[:, 0]


def _npz(files: Files, train: bool, device: torch.device) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    name = "train.npz" if train else "test.npz"
    try:
        arrays = np.load(io.BytesIO(files.read(name)), allow_pickle=False)
        if {"images", "labels"} <= set(arrays):
            return _upright(arrays["images"]), torch.as_tensor(arrays["labels"])
        if set(jpeg.FIELDS) <= set(arrays):
            return jpeg.pixels_of(arrays, device), torch.as_tensor(arrays["label"])
    except (OSError, RuntimeError, ValueError, IndexError, BadZipFile) as problem:
        raise ConfigError(
            f"{name} in {files.path} cannot be read: {problem}"
        ) from problem
    raise ConfigError(
        f"{name} in {files.path} holds {', '.join(arrays)}: give images and labels, or "
        f"JPEG coefficients ({', '.join(jpeg.FIELDS)})"
    )


def _upright(images: NDArray[Any]) -> Tensor:
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise ValueError(
            f"images are {images.dtype} {images.shape}, not uint8 (count, 32, 32, 3)"
        )
    return torch.as_tensor(images).permute(0, 3, 1, 2).contiguous()


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and nothing else: a pickle may run any code it names."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
        }
        if name == "_reconstruct" and module.endswith("core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if (module, name) in allowed:
            return allowed[module, name]
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _unpickled(name: str, content: bytes) -> dict[bytes, Any]:
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        # Written by Python 3 the keys are texts.
        keyed = {k.encode() if isinstance(k, str) else k: v for k, v in batch.items()}
        return {key: keyed[key] for key in (b"data", b"labels")}
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError) as problem:
        raise ConfigError(
            f"{name} is not a batch of CIFAR-10: {problem}. {SOURCE.instructions}"
        ) from problem
