"""Lists of difficult values, and the checks of every value codec."""

from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import Tensor

from thinwire.codecs import Int32, Split
from thinwire.errors import WireError
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

LARGEST = torch.finfo(torch.float32).max
GOLDEN = Path(__file__).parents[1] / "golden"

BITS = st.integers(-(2**31), 2**31 - 1)


def from_bits(bits) -> Tensor:
    return torch.as_tensor(bits).to(torch.int32).view(torch.float32)


def to_bits(values: Tensor) -> list[int]:
    return values.contiguous().view(torch.int32).tolist()


ANY_VALUES = st.lists(BITS, max_size=40).map(from_bits)


def wave(nnz: int) -> Tensor:
    """Values of many magnitudes and both signs, the same on every machine."""
    place = torch.arange(nnz, dtype=torch.float32)
    return (place * 37 % 101 - 50) * torch.exp2(place % 7 - 3)


def _not_finite(nnz: int) -> Tensor:
    values = wave(nnz)
    values[::3], values[1::7] = float("inf"), float("nan")
    return values


LISTS = {
    "wave": wave,
    "whole": lambda n: (torch.arange(n) * 31 % 17 - 8).float(),
    "equal": lambda n: torch.full((n,), -2.5),
    "zero": torch.zeros,
    "negative zero": lambda n: -torch.zeros(n),
    "tiny": lambda n: from_bits(torch.arange(n) * 97 % 5003),
    "huge": lambda n: wave(n) * 2.0**116,
    "largest": lambda n: torch.full((n,), LARGEST),
    "not finite": _not_finite,
    "all not finite": lambda n: torch.full((n,), float("nan")),
    "every exponent": lambda n: from_bits(torch.arange(n) * 0x1234567 % 0x7F800000),
}
SIZES = (0, 1, 2, 7, 8, 9, 64, 255, 256, 257, 1000)


def round_trip(codec, values: Tensor, key: int = 5) -> Tensor:
    codec = codec.with_key(key)
    section = codec.encode(values)
    assert section.dtype == torch.uint8
    assert codec.nbytes(len(values)) in (None, section.numel())
    padding = torch.zeros(-section.numel() % 8, dtype=torch.uint8)
    read = codec.decode(torch.cat([section, padding]), len(values))
    assert read.dtype == torch.float32
    assert len(read) == len(values)
    assert to_bits(read) == to_bits(codec.decode(section, len(values)))
    return read


def accepts(codec, section: Tensor, nnz: int) -> bool:
    """Whether a section is read, to as many values as were asked for."""
    try:
        read = codec.decode(section, nnz)
    except WireError:
        return False
    assert len(read) == nnz
    return True


def check_damage(codec, data, values: Tensor) -> None:
    """Cut and lengthened sections are refused; changed ones refused or read."""
    section = codec.with_key(5).encode(values)
    if section.numel():
        cut = data.draw(st.integers(0, section.numel() - 1))
        assert not accepts(codec, section[:cut].clone(), len(values))
        changed = section.clone()
        at = data.draw(st.integers(0, section.numel() - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
        accepts(codec, changed, len(values))
    noise = data.draw(st.binary(max_size=60))
    accepts(codec, torch.tensor(list(noise), dtype=torch.uint8), len(values))


def golden_packet(codec, vector: SparseVector, name: str) -> tuple[bytes, Packet]:
    """What is written today, and the bytes that must decode for ever."""
    today = Split(Int32(), codec, checksum=False).encode(vector, key=5)
    kept = (GOLDEN / name).read_bytes()
    body = torch.tensor(list(kept), dtype=torch.uint8)
    return bytes(today.body.tolist()), Packet.parse(body)


def golden_values(codec, packet: Packet) -> Tensor:
    read = Split(Int32(), codec, checksum=False).decode(packet, packet.size, key=5)
    return read.values


def spread(values: Tensor) -> SparseVector:
    """A list of these values, every third place of a vector."""
    places = torch.arange(len(values), dtype=torch.int32) * 3
    return SparseVector(places, values, 3 * len(values) + 1)
