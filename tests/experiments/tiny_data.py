"""Data sets of a few examples, written in the standard formats."""

import gzip
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np

RNG = np.random.default_rng(0)


def cifar_arrays(count: int) -> tuple[np.ndarray, list[int]]:
    return RNG.integers(0, 256, (count, 3072), dtype=np.uint8), [
        i % 10 for i in range(count)
    ]


CIFAR = {
    **{f"data_batch_{i}": cifar_arrays(20) for i in range(1, 6)},
    "test_batch": cifar_arrays(30),
}


def cifar_python(folder: Path) -> Path:
    inner = folder / "cifar-10-batches-py"
    inner.mkdir()
    for name, (pixels, labels) in CIFAR.items():
        content = {b"batch_label": b"x", b"data": pixels, b"labels": labels}
        (inner / name).write_bytes(pickle.dumps(content, protocol=2))
    (inner / "batches.meta").write_bytes(b"")
    return folder


def cifar_binary(folder: Path) -> Path:
    inner = folder / "cifar-10-batches-bin"
    inner.mkdir()
    for name, (pixels, labels) in CIFAR.items():
        rows = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
        (inner / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def cifar_archive(folder: Path) -> Path:
    outside = folder / "unpacked"
    outside.mkdir()
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(cifar_python(outside) / "cifar-10-batches-py", "cifar-10-batches-py")
    return folder


def cifar_npz(folder: Path) -> Path:
    for name, batches in (
        ("train", [f"data_batch_{i}" for i in range(1, 6)]),
        ("test", ["test_batch"]),
    ):
        pixels = np.concatenate([CIFAR[batch][0] for batch in batches])
        labels = np.concatenate([CIFAR[batch][1] for batch in batches])
        images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
    return folder


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def fashion(folder: Path, train: int = 70, test: int = 30) -> Path:
    for part, count in (("train", train), ("t10k", test)):
        images = RNG.integers(0, 256, (count, 28, 28))
        for name, array in (
            ("images-idx3", images),
            ("labels-idx1", np.arange(count) % 10),
        ):
            content = gzip.compress(idx_bytes(array))
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(content)
    return folder


def wikitext(folder: Path, *, tokens: bool = False, words: int = 900) -> Path:
    for part, count in (("train", words), ("valid", 300), ("test", 200)):
        text = [f"w{i}" for i in RNG.integers(0, 50, count)]
        lines = [" ".join(text[i : i + 9]) for i in range(0, count, 9)]
        content = "".join(f" {line} \n" for line in lines).encode()
        if tokens:
            (folder / f"wiki.{part}.tokens").write_bytes(content)
        else:
            (folder / f"{part}.txt.gz").write_bytes(gzip.compress(content))
    return folder


def rating_rows(users: int = 25, items: int = 45, each: int = 21) -> list[list[int]]:
    """Every user's newest rating is of the item of the user's number."""
    rows = []
    for user in range(users):
        others = np.delete(np.arange(items), user)
        others = RNG.choice(others, each - 1, replace=False)
        rows += [[user + 1, int(i) + 1000, 5, 100 + at] for at, i in enumerate(others)]
        rows.append([user + 1, user + 1000, 9, 999])
    return [rows[i] for i in RNG.permutation(len(rows))]
