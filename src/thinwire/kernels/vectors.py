"""Primitives of vectors and sparse lists: what collectives are made of."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.blocks import Block
from thinwire.kernels.entry import backend, entered
from thinwire.kernels.marker import Marker

Sparse = tuple[Tensor, Tensor]


def magnitudes(vector: Tensor, bounds: Tensor) -> Tensor:
    """Largest |v| in each `vector[bounds[i] : bounds[i + 1]]`; NaN is infinity.

    >>> v = torch.tensor([1.0, -3.0, float("nan"), 0.5])
    >>> magnitudes(v, torch.tensor([0, 2, 3, 3, 4])).tolist()
    [3.0, inf, 0.0, 0.5]
    """
    with entered("magnitudes"):
        return backend(vector).magnitudes(vector, bounds)  # type: ignore[no-any-return]


def row_peaks(vector: Tensor, width: int) -> Tensor:
    """Largest |v| in each `width` elements, the last ones fewer; NaN is infinity.

    >>> import torch
    >>> row_peaks(torch.tensor([1.0, -3.0, float("nan"), 0.5, -2.0]), 2).tolist()
    [3.0, inf, 2.0]
    """
    with entered("row_peaks"):
        return backend(vector).row_peaks(vector, width)  # type: ignore[no-any-return]


def at_least(x: Tensor, least: float) -> Tensor:
    """The elements other than zero with |v| >= `least`, or NaN: their places.

    `least` is a float32.

    >>> import torch
    >>> x = torch.tensor([1.0, -3.0, float("nan"), 0.0])
    >>> at_least(x, 2.0).tolist(), at_least(x, 0.0).tolist()
    ([1, 2], [0, 1, 2])
    """
    with entered("at_least"):
        return backend(x).at_least(x, least)  # type: ignore[no-any-return]


def accumulate_(
    x: Tensor,
    grad: Tensor,
    *,
    offset: int = 0,
    scale: float = 1.0,
    marker: Marker | None = None,
) -> None:
    """`x = x * scale + grad` from `offset` on; `grad` is left all zero.

    With a `marker`, candidates for selection are marked in the same pass.
    """
    with entered("accumulate_"):
        backend(x).accumulate_(x, grad, offset=offset, scale=scale, marker=marker)


def select(
    x: Tensor,
    k: int,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> Sparse:
    """The `k` largest |v| of a block, ties to the smaller index, indices ascending.

    Indices count within the block. `number` says which of the marker's blocks it is.

    >>> import torch
    >>> i, v = select(torch.tensor([1.0, -2.0, 2.0, 0.0]), 2)
    >>> i.tolist(), v.tolist()
    ([1, 2], [-2.0, 2.0])
    """
    if marker is not None:
        block = marker.blocks[number]
    elif block is None:
        block = Block.whole(x.numel())
    with entered("select"):
        return backend(x).select(x, k, block=block, marker=marker, number=number)  # type: ignore[no-any-return]


def select_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int] | None = None,
) -> list[Sparse]:
    """`select` from several of the marker's blocks, by default all, at once."""
    chosen = range(len(marker.blocks)) if numbers is None else numbers
    run = backend(x)
    with entered("select_each"):
        if hasattr(run, "select_each"):  # all of them in the same launches
            return run.select_each(x, counts, marker=marker, numbers=chosen)  # type: ignore[no-any-return]
        return [
            run.select(x, k, block=marker.blocks[b], marker=marker, number=b)
            for k, b in zip(counts, chosen, strict=True)
        ]


def take_each(
    x: Tensor,
    counts: Sequence[int],
    *,
    marker: Marker,
    numbers: Sequence[int] | None = None,
    rounding: torch.dtype = torch.float32,
) -> list[Sparse]:
    """`select_each`, and what is selected is subtracted, rounded to a dtype.

    Blocks may be taken from at once, so each is named once at most. Only what rounding
    takes off stays: nothing with float32; bfloat16 is the other one.

    >>> x, marker = torch.tensor([1.0, 2.0 + 2**-9]), Marker((Block.whole(2),))
    >>> taken = take_each(x, [1], marker=marker, rounding=torch.bfloat16)
    >>> taken[0][1].tolist(), x.tolist()
    ([2.001953125], [1.0, 0.001953125])
    """
    if rounding not in (torch.float32, torch.bfloat16):
        raise ValueError(f"values are rounded to float32 or bfloat16, not {rounding}")
    chosen = range(len(marker.blocks)) if numbers is None else numbers
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"blocks {list(chosen)}: name each of them once")
    with entered("take_each"):
        return backend(x).take_each(  # type: ignore[no-any-return]
            x, counts, marker=marker, numbers=chosen, rounding=rounding
        )


def reclaim_(x: Tensor, marker: Marker) -> None:
    """Make `x` whole for whoever looks at it otherwise; its marks are void then."""
    with entered("reclaim_"):
        backend(x).reclaim_(x, marker)


def merge_add(
    left: Tensor, left_values: Tensor, right: Tensor, right_values: Tensor
) -> Sparse:
    """The sum of two sparse lists, indices strictly increasing in all three."""
    with entered("merge_add"):
        return backend(left).merge_add(left, left_values, right, right_values)  # type: ignore[no-any-return]


def merge_all(lists: Sequence[Sparse]) -> Sparse:
    """The sum of at least one list, added as a balanced tree in the given order."""
    with entered("merge_all"):
        return backend(lists[0][1]).merge_all(lists)  # type: ignore[no-any-return]


def split(indices: Tensor, values: Tensor, k: int) -> tuple[Sparse, Sparse]:
    """The `k` entries of largest |v| (ties to the smaller index), and the others."""
    with entered("split"):
        return backend(values).split(indices, values, k)  # type: ignore[no-any-return]


def merge_split(left: Sparse, right: Sparse, k: int) -> tuple[Sparse, Sparse]:
    """The sum of two lists, split, where one of them has at least `k` entries.

    Nothing waits for the number of indices that both list: on a device, the others may
    have as many holes, with a value of zero at an index of -1, which is nowhere.
    """
    with entered("merge_split"):
        return backend(left[1]).merge_split(left, right, k)  # type: ignore[no-any-return]


def gather(x: Tensor, indices: Tensor, *, block: Block | None = None) -> Tensor:
    """What `x` holds at these elements of the block."""
    with entered("gather"):
        return backend(x).gather(x, indices, block=block or Block.whole(x.numel()))  # type: ignore[no-any-return]


def add_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    marker: Marker | None = None,
    number: int = 0,
) -> None:
    """`x[indices] += values` in a block; with a marker, those elements are marked."""
    if marker is not None:
        block = marker.blocks[number]
    block = block or Block.whole(x.numel())
    with entered("add_at_"):
        backend(x).add_at_(
            x, indices, values, block=block, marker=marker, number=number
        )


def subtract_at_(
    x: Tensor, indices: Tensor, values: Tensor, *, block: Block | None = None
) -> None:
    """`x[indices] -= values` in a block."""
    with entered("subtract_at_"):
        backend(x).subtract_at_(
            x, indices, values, block=block or Block.whole(x.numel())
        )


def leave_at_(
    x: Tensor,
    indices: Tensor,
    held: Tensor,
    sent: Tensor,
    *,
    block: Block | None = None,
) -> None:
    """`x[indices] -= sent` in a block, where `x` is known to hold `held` there."""
    with entered("leave_at_"):
        backend(x).leave_at_(
            x, indices, held, sent, block=block or Block.whole(x.numel())
        )


def keep_at_(
    x: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    told: Tensor | None = None,
    holders: tuple[int, int] = (1, 0),
    block: Block | None = None,
) -> None:
    """`x[indices] += values`, or what of them was not `told`, in a block.

    Of `holders` (how many, and the number of this one) that do so alike, each adds its
    share: an equal one if they are a power of two, else all where the remainder of the
    index is its number. What was told whole is left alone, and so are holes.

    >>> x, one = torch.zeros(4), torch.ones(2)
    >>> keep_at_(x, torch.tensor([0, 3]), one, told=one / 2, holders=(2, 1))
    >>> x.tolist()
    [0.25, 0.0, 0.0, 0.25]
    """
    with entered("keep_at_"):
        backend(x).keep_at_(
            x,
            indices,
            values,
            told=told,
            holders=holders,
            block=block or Block.whole(x.numel()),
        )


def scatter_(
    out: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    block: Block | None = None,
    divisor: float = 1.0,
) -> None:
    """`out[indices] = values / divisor` in a block, rounded to the dtype of `out`."""
    with entered("scatter_"):
        backend(out).scatter_(
            out,
            indices,
            values,
            block=block or Block.whole(out.numel()),
            divisor=divisor,
        )


def write_mean_(
    pieces: Sequence[Tensor], indices: Tensor, values: Tensor, *, ranks: int
) -> Tensor:
    """`values / ranks` into zeroed pieces that follow one another; returned as float32.

    Each piece rounds them to its dtype.

    >>> pieces = torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)
    >>> write_mean_(pieces, torch.tensor([1, 3]), torch.tensor([3.0, 9.0]), ranks=3)
    tensor([1., 3.])
    >>> [piece.tolist() for piece in pieces]
    [[0.0, 1.0], [0.0, 3.0]]
    """
    with entered("write_mean_"):
        return backend(values).write_mean_(pieces, indices, values, ranks=ranks)  # type: ignore[no-any-return]


def join(lists: Sequence[Sparse], blocks: Sequence[Block]) -> Sparse:
    """One list of the vector from the lists of all its blocks, indices ascending.

    >>> import torch
    >>> from thinwire.kernels import interleaved_blocks
    >>> evens, odds = torch.tensor([1], dtype=torch.int32), torch.tensor([0])
    >>> i, v = join(
    ...     [(evens, torch.tensor([2.0])), (odds.int(), torch.tensor([1.0]))],
    ...     interleaved_blocks(4, 2, chunk=1),
    ... )
    >>> i.tolist(), v.tolist()
    ([1, 2], [1.0, 2.0])
    """
    with entered("join"):
        return backend(lists[0][1]).join(lists, blocks)  # type: ignore[no-any-return]


def strictly_increasing(indices: Tensor, size: int) -> bool:
    """Whether these are valid indices of a sparse list over `size` elements."""
    with entered("strictly_increasing"):
        return backend(indices).strictly_increasing(indices, size)  # type: ignore[no-any-return]
