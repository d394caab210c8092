"""Place: which entries of a state dict are a rank's own, and which it takes."""

import re
from dataclasses import dataclass
from typing import Self

_KEY = re.compile(r"rank (\d{1,9}) of (\d{1,9})(?:, shard (\d{1,9}) of (\d{1,9}))?")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A rank among those that reduce the same shard, and the number of this shard.

    >>> Place(0, 4).key, Place(2, 3, 1, 2).key
    ('rank 0 of 4', 'rank 2 of 3, shard 1 of 2')
    >>> Place.named("rank 0 of 4"), Place.named("version")
    (Place(rank=0, size=4, shard=0, shards=1), None)
    """

    rank: int
    size: int
    shard: int = 0
    shards: int = 1

    @classmethod
    def named(cls, key: object) -> Self | None:
        """The place that a key names."""
        found = _KEY.fullmatch(key) if isinstance(key, str) else None
        if found is None:
            return None
        return cls(*(int(each) for each in found.groups() if each is not None))

    @property
    def key(self) -> str:
        """The key of its entries."""
        rank = f"rank {self.rank} of {self.size}"
        return rank + (f", shard {self.shard} of {self.shards}" * (self.shards > 1))

    @property
    def index(self) -> int:
        """Its number among all ranks of all shards."""
        return self.rank * self.shards + self.shard

    def sources(self, size: int, shards: int) -> list["Place"]:
        """The places of a save whose vectors this rank takes.

        >>> [each.key for each in Place(0, 3).sources(4, 1)]
        ['rank 0 of 4', 'rank 3 of 4']
        >>> Place(2, 3).sources(2, 1)
        []
        """
        needed = [self.shard] if shards == self.shards else range(shards)
        ranks = range(self.rank, size, self.size)
        return [Place(rank, size, shard, shards) for rank in ranks for shard in needed]

    @property
    def impossible(self) -> bool:
        """Whether there is no such place."""
        return not (self.rank < self.size and self.shard < self.shards)
