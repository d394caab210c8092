"""Measurements of codecs: correct figures; wrong codecs are refused."""

from math import comb, log2

import pytest
import torch

from thinwire.catalog import INDEX_CODECS, VALUE_CODECS, codec
from thinwire.codecs import Float32, Int32, Split
from thinwire.sparse import SparseVector
from thinwire.tools.bench.codecs import (
    bound,
    clocked,
    largest,
    measure,
    measure_half,
    one_thread,
    recall,
    relative_error,
)

NAMES = [f"{index}+float32" for index in INDEX_CODECS]
NAMES += [f"rice+{value}" for value in VALUE_CODECS]


@pytest.fixture(scope="module")
def dense():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(20_000, generator=generator)


@pytest.mark.parametrize(("size", "nnz"), [(16, 5), (100, 1), (100, 99), (7, 7)])
def test_the_bound_is_the_number_of_lists(size, nnz):
    assert bound(size, nnz) == pytest.approx(log2(comb(size, nnz)) / nnz, abs=1e-9)
    assert bound(size, 0) == 0


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_the_packet(dense, name):
    vector = largest(dense, 0.01)
    found = measure(codec(name), vector, lambda i: dense[i.long()], seconds=0)
    packet = codec(name).encode(vector, source=lambda i: dense[i.long()])
    index, value = (8 * len(section) / 200 for section in packet.sections)
    assert (found.index_bits, found.value_bits) == (index, value)
    assert found.packet_bits == 8 * packet.body.numel() / 200
    assert 0 < found.encode.least <= found.encode.median <= found.encode.most
    assert 0 < found.decode.least <= found.decode.median <= found.decode.most


@pytest.mark.parametrize(
    ("name", "error", "found"),
    [
        ("raw", 0.0, 1.0),
        ("huffman+zstd", 0.0, 1.0),
        ("rice+bfloat16", 0.002, 1.0),
        ("rice+int8", 0.01, 1.0),
        ("rice+log4", 0.05, 1.0),
        ("bloom-p0+float32", 0.0, 1.0),
        ("bloom-p2+float32", 0.0, 0.95),
        ("bloom-naive+float32", 2.0, 0.8),
    ],
)
def test_error_and_recall(dense, name, error, found):
    vector = largest(dense, 0.01)
    measured = measure(codec(name), vector, lambda i: dense[i.long()], seconds=0)
    assert measured.error <= error
    assert (measured.error > 0) == (error > 0)
    assert found <= measured.recall <= 1.0


def test_without_a_source_what_is_not_listed_is_zero():
    vector = SparseVector.of({3: 1.0, 8: -2.0}, size=1000)
    assert measure(codec("bloom-p0+float32"), vector, seconds=0).error == 0


class Wrong(Int32):
    """Decodes a wrong last index."""

    def decode_deferring(self, section, size, nnz, errors):
        indices = super().decode_deferring(section, size, nnz, errors).clone()
        indices[-1] += 1
        return indices


class Rough(Float32):
    """Loses bits, where `Float32` is exact."""

    def decode(self, section, nnz):
        return super().decode(section, nnz) * 2


@pytest.mark.parametrize(
    "wrong", [Split(Wrong(), Float32()), Split(Int32(), Rough())], ids=repr
)
def test_what_does_not_come_back_is_not_measured(dense, wrong):
    with pytest.raises(RuntimeError, match="does not give back what it should"):
        measure(wrong, largest(dense, 0.01), seconds=0)


def test_a_half_is_measured_by_its_bytes():
    half, read = measure_half(lambda: b"12345", lambda section: section[:2], 10)
    assert half.bits == 4
    assert read == b"12"


def test_a_call_is_clocked_more_than_once_if_there_is_time():
    calls = []
    times, result = clocked(lambda: calls.append(1) or len(calls), 1, seconds=0)
    assert result == len(calls) == 2
    clocked(lambda: calls.append(1), 1, seconds=60)
    assert len(calls) == 2 + 51
    assert times.least == times.median == times.most


def test_errors_are_relative():
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.zeros(2), torch.ones(2)) == 1
    assert recall(torch.tensor([1, 4]), torch.tensor([1, 2, 9])) == pytest.approx(1 / 3)


def test_one_thread_and_then_as_before():
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
