"""OneRank: the group of a process that has no others."""

from collections.abc import Callable, Sequence

from torch import Tensor

from thinwire.errors import GroupError
from thinwire.groups import checks
from thinwire.groups.group import Group, Op


class OneRank(Group):
    """Rank 0 of 1: what it sends to itself arrives at once."""

    @property
    def rank(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

    def exchange(
        self,
        body: Tensor | None,
        *,
        dst: int | None,
        src: int | None,
        nbytes: int | None,
    ) -> Tensor | None:
        checks.check_exchange(self, body, dst=dst, src=src, nbytes=nbytes)
        return None if body is None else body.clone()

    def all_to_all(
        self, bodies: Sequence[Tensor], *, nbytes: Sequence[int] | None
    ) -> list[Tensor]:
        checks.check_all_to_all(self, bodies, nbytes)
        return [body.clone() for body in bodies]

    def all_reduce_(self, *parts: tuple[Tensor, Op]) -> None:
        checks.check_all_reduce(parts)

    def begin_all_reduce_(
        self,
        tensor: Tensor,
        done: Callable[[GroupError | None], None],
    ) -> None:
        """Call `done`: as `TorchGroup` does at the end of a sum."""
        done(None)

    def close(self) -> None:
        """Nothing is held."""
