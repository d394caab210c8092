"""A block of a flat vector as four plain integers, so kernels can work in place."""

from typing import NamedTuple


class Block(NamedTuple):
    """Element j of the block is element `start + (j // chunk) * stride + j % chunk`.

    A contiguous block is one chunk. Interleaved blocks take the chunks of the vector in
    turn; only the last chunk of the vector may be short.

    >>> b = Block(start=2, chunk=2, stride=6, length=5)
    >>> [b.position(j) for j in range(b.length)]
    [2, 3, 8, 9, 14]
    """

    start: int
    chunk: int
    stride: int
    length: int

    @classmethod
    def whole(cls, size: int) -> "Block":
        """The whole of a vector of `size` elements."""
        return cls(0, max(size, 1), max(size, 1), size)

    def position(self, j: int) -> int:
        """The index in the vector of element `j` of the block."""
        return self.start + (j // self.chunk) * self.stride + j % self.chunk

    def check_inside(self, size: int) -> None:
        """Raise `ValueError` unless the block lies in a vector of `size` elements."""
        if self.length and self.position(self.length - 1) >= size:
            raise ValueError(f"{self} does not lie in a vector of {size} elements")

    @property
    def contiguous(self) -> bool:
        """Whether the block is one chunk."""
        return self.length <= self.chunk


def contiguous_blocks(size: int, count: int) -> tuple[Block, ...]:
    """`count` contiguous blocks whose lengths differ by at most one.

    >>> [b.length for b in contiguous_blocks(10, 4)]
    [3, 3, 2, 2]
    """
    short, longer = divmod(size, count)
    blocks = []
    start = 0
    for i in range(count):
        length = short + (i < longer)
        blocks.append(Block(start, max(length, 1), max(length, 1), length))
        start += length
    return tuple(blocks)


def interleaved_blocks(size: int, count: int, chunk: int) -> tuple[Block, ...]:
    """`count` blocks that take chunks of `chunk` elements in turn.

    >>> [b.length for b in interleaved_blocks(10, 2, 3)]
    [6, 4]
    """
    full, tail = divmod(size, chunk)
    blocks = []
    for i in range(count):
        length = (full // count + (i < full % count)) * chunk
        length += tail if full % count == i else 0
        blocks.append(Block(i * chunk, chunk, count * chunk, length))
    return tuple(blocks)


def chunk_of(blocks: tuple[Block, ...]) -> int:
    """The chunk by which blocks are interleaved; 0 if contiguous, -1 if neither.

    >>> chunk_of(contiguous_blocks(10, 3)), chunk_of(interleaved_blocks(10, 2, 3))
    (0, 3)
    """
    end = 0
    for block in blocks:
        if not block.contiguous or block.start != end:
            break
        end += block.length
    else:
        return 0
    size = sum(block.length for block in blocks)
    chunk = blocks[0].chunk
    return chunk if blocks == interleaved_blocks(size, len(blocks), chunk) else -1
