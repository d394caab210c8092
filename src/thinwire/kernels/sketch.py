"""Primitives of sketches: a vector in few cells, and what these say of an element."""

from torch import Tensor

from thinwire.kernels.entry import backend, entered, processor
from thinwire.kernels.hashes import Hashes


def encode_sketch(x: Tensor, hashes: Hashes) -> Tensor:
    """The count-sketch of a vector: in every row, each element in one signed cell.

    It is linear: tables of the same hashes add up to the table of the sum.

    >>> import torch
    >>> x = torch.tensor([0.0, 0.0, 4.0])
    >>> encode_sketch(x, Hashes(rows=2, columns=3, seed=7)).tolist()
    [[0.0, -4.0, 0.0], [0.0, 0.0, -4.0]]
    """
    with entered("encode_sketch"):
        return backend(x).encode_sketch(x, hashes)  # type: ignore[no-any-return]


def estimate_sketch_(
    out: Tensor, table: Tensor, hashes: Hashes, *, mean: bool = False
) -> None:
    """What a table says of every element: the median of its rows, or their mean.

    The median takes 1, 3, 5 or 7 rows of finite cells: that of an even number is biased
    or is no row's.

    >>> import torch
    >>> x, hashes = torch.tensor([1.0, 0.0, 4.0]), Hashes(3, columns=5, seed=7)
    >>> out = torch.empty(3)
    >>> estimate_sketch_(out, encode_sketch(x, hashes), hashes)
    >>> out.tolist()
    [1.0, 0.0, 4.0]
    """
    with entered("estimate_sketch_"):
        backend(out).estimate_sketch_(out, table, hashes, mean=mean)


def sketch_energy(table: Tensor) -> Tensor:
    """The sum of squares of each row, in float64: each about that of the vector.

    Cell j is added to lane j % 64, then the lanes in order, so that all agree.

    >>> import torch
    >>> sketch_energy(torch.tensor([[3.0, -4.0], [0.0, 5.0]])).tolist()
    [25.0, 25.0]
    """
    with entered("sketch_energy"):
        return backend(table).sketch_energy(table)  # type: ignore[no-any-return]


def shuffled(size: int, count: int, key: int) -> Tensor:
    """The first `count` of the numbers below `size`, shuffled by a key; as int64.

    >>> sorted(shuffled(5, 5, key=1).tolist())
    [0, 1, 2, 3, 4]
    """
    with entered("shuffled"):
        return processor().shuffled(size, count, key)  # type: ignore[no-any-return]
