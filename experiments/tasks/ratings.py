"""Who rated what, and when: from the files of MovieTweetings and MovieLens."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.tasks.files import Files, Source
from thinwire.errors import ConfigError

SOURCE = Source(
    "ratings",
    "https://github.com/sidooms/MovieTweetings or https://grouplens.org/datasets/movielens",
    "ratings.dat, ratings.csv or u.data",
)
# The least ratings of a user and of an item. For users as in the paper of neural
# collaborative filtering.
_USER_RATINGS, _ITEM_RATINGS = 20, 5


@dataclass(frozen=True)
class Ratings:
    """Pairs of numbers from 0 up: trained on, and held out (one of a user's)."""

    users: Tensor
    items: Tensor
    held_out_users: Tensor
    held_out_items: Tensor
    user_count: int
    item_count: int


def load(path: Path) -> Ratings:
    """Read a file of ratings and hold out each user's last one."""
    files = Files(path, SOURCE)
    name = files.find("ratings.dat", "ratings.csv", "u.data")
    if path.is_file():
        name = path.name.removesuffix(".gz")
    if name is None:
        raise SOURCE.missing(path, "there is no ratings.dat, ratings.csv or u.data")
    return _split(_active(_parsed(name, files.read(name)), name))


def _active(table: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    """The largest part in which every user and every item has enough ratings."""
    while len(table):
        _, users = np.unique(table[:, 0], return_inverse=True)
        _, items = np.unique(table[:, 1], return_inverse=True)
        enough = np.bincount(users)[users] >= _USER_RATINGS
        enough &= np.bincount(items)[items] >= _ITEM_RATINGS
        if enough.all():
            return table
        table = table[enough]
    raise ConfigError(
        f"{name} has no users of {_USER_RATINGS} ratings or more, of items that "
        f"{_ITEM_RATINGS} or more have rated: give a larger file"
    )


def _parsed(name: str, content: bytes) -> NDArray[np.int64]:
    """Rows of user, item, time; the ratings themselves are not needed.

    Fields end in "::", "," or a tab; a first line may name them.
    """
    head, _, rest = content.partition(b"\n")
    lines = content if head[:1].isdigit() else rest
    if not lines.strip():
        raise ConfigError(f"{name} holds no ratings: {SOURCE.instructions}")
    fields = io.BytesIO(lines.replace(b"::", b",").replace(b"\t", b","))
    try:
        table = np.loadtxt(fields, delimiter=",", usecols=(0, 1, 3), ndmin=2)
    except ValueError as problem:
        raise ConfigError(
            f"{name} is not a file of ratings (lines of user, item, rating and time): "
            f"{problem}. {SOURCE.instructions}"
        ) from problem
    return table.astype(np.int64)


def _split(table: NDArray[np.int64]) -> Ratings:
    _, users = np.unique(table[:, 0], return_inverse=True)
    _, items = np.unique(table[:, 1], return_inverse=True)
    # By user, then by time, then as in the file: a user's last one is the newest.
    order = np.lexsort((np.arange(len(table)), table[:, 2], users))
    users, items = users[order], items[order]
    last = np.append(users[1:] != users[:-1], True)
    return Ratings(
        torch.as_tensor(users[~last]),
        torch.as_tensor(items[~last]),
        torch.as_tensor(users[last]),
        torch.as_tensor(items[last]),
        user_count=int(users.max()) + 1,
        item_count=int(items.max()) + 1,
    )
