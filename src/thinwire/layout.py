"""Layout: the names and shapes of the pieces of a flat vector."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from thinwire.errors import ConfigError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Layout:
    """Names and shapes, in their order in the flat vector.

    `strides` are those of each piece in its part of the vector, None if all pieces are
    contiguous: gradients in DDP's buckets have the strides of their parameters.

    >>> layout = Layout(("w", "b"), ((2, 3), (3,)))
    >>> layout.size, layout.offsets
    (9, (0, 6, 9))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> "Layout":
        """The layout of named tensors; refuses what float32 cannot represent.

        >>> Layout.of([("steps", torch.zeros(2, dtype=torch.int64))])
        Traceback (most recent call last):
        thinwire.errors.ConfigError: 'steps' is torch.int64: thinwire reduces ...
        """
        names, shapes, strides = [], [], []
        by_rows = True
        for name, tensor in named:
            if tensor.dtype not in DTYPES:
                raise ConfigError(
                    f"{name!r} is {tensor.dtype}: thinwire reduces float32, bfloat16 "
                    "and float16 gradients, in float32. Convert the parameter (for "
                    "example with model.float()) or freeze it"
                )
            names.append(name)
            shapes.append(tuple(tensor.shape))
            strides.append(_strides_in_bucket(tensor))
            by_rows = by_rows and tensor.is_contiguous()
        return cls(tuple(names), tuple(shapes), None if by_rows else tuple(strides))

    @classmethod
    def flat(cls, size: int) -> "Layout":
        """One unnamed vector of `size` elements."""
        return cls(("",), ((size,),))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each piece starts, and where the last one ends."""
        counts = (torch.Size(shape).numel() for shape in self.shapes)
        return tuple(accumulate(counts, initial=0))

    @property
    def size(self) -> int:
        """Elements in all."""
        return self.offsets[-1]

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The pieces of a flat vector by name, in their shapes, sharing its memory."""
        edges = zip(self.offsets, self.offsets[1:], strict=False)
        pieces = (vector[low:high] for low, high in edges)
        views = {
            name: piece.view(shape)
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }
        if self.strides is None:
            return views
        return {
            name: view.as_strided(view.shape, strides)
            for (name, view), strides in zip(views.items(), self.strides, strict=True)
        }

    def pick(self, names: Iterable[str]) -> "Layout":
        """Some of the pieces, in another order.

        >>> Layout(("w", "b"), ((2, 3), (3,))).pick(["b"])
        Layout(names=('b',), shapes=((3,),), strides=None)
        """
        where = {name: i for i, name in enumerate(self.names)}
        order = [where[name] for name in names]
        return Layout(
            tuple(self.names[i] for i in order),
            tuple(self.shapes[i] for i in order),
            None if self.strides is None else tuple(self.strides[i] for i in order),
        )


def _strides_in_bucket(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's own strides if it fills its memory, else those of rows."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    dense = tensor.permute(order).is_contiguous()
    return tuple((tensor if dense else tensor.new_empty(tensor.shape)).stride())
