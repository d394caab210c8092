"""Kernels of value codecs: the reference's bits, and as strict."""

from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import VECTORS, same_bits, vector
from tests.strategies import unhurried

SIZES = (0, 1, 8, 65, 257, 1300)
WORDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=70)

# Of every format in turn.
thorough = settings(unhurried, max_examples=150)

HALVES = ("to_bfloat16", "to_float16")
FORMATS = {
    "int8": ((), ()),
    **{f"log {bits}": ((bits,), (bits,)) for bits in range(3, 9)},
    "qsgd": ((127, 512, 2**63 - 1), (127, 512)),
    "qsgd 1 3": ((1, 3, 7), (1, 3)),
    "qsgd 1000 64": ((1000, 64, 0), (1000, 64)),
}


def coders(backend, name):
    writing, reading = FORMATS[name]
    encode = getattr(backend, f"encode_{name.split()[0]}")
    decode = getattr(backend, f"decode_{name.split()[0]}")
    return lambda values: encode(values, *writing), partial(_read, decode, reading)


def _read(decode, options, section, nnz):
    """The values, or what was found wrong."""
    try:
        return decode(section, nnz, *options)
    except ValueError as error:
        return str(error)


def alike(left, right):
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    return same_bits(left, right)


def check(values, name):
    (encode, decode), (plain, read) = coders(cpu, name), coders(reference, name)
    section = encode(values)
    assert torch.equal(section, plain(values))
    found = decode(section, len(values))
    assert not isinstance(found, str)
    assert alike(found, read(section, len(values)))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("size", SIZES)
def test_halves_agree(size, name):
    for kind in VECTORS:
        v = vector(kind, size)
        found = getattr(cpu, name)(v)
        assert same_bits(found, getattr(reference, name)(v))
        assert found.view(torch.uint8).numel() == 2 * size  # as codecs look at them


@pytest.mark.parametrize("name", HALVES)
@unhurried
@given(WORDS)
def test_halves_of_any_bits_agree(name, words):
    v = torch.tensor(words, dtype=torch.int32).view(torch.float32)
    assert same_bits(getattr(cpu, name)(v), getattr(reference, name)(v))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", SIZES)
def test_formats_agree(size, name):
    for kind in VECTORS:
        check(vector(kind, size), name)


@thorough
@given(st.sampled_from(sorted(FORMATS)), WORDS)
def test_formats_of_any_bits_agree(name, words):
    check(torch.tensor(words, dtype=torch.int32).view(torch.float32), name)


@pytest.mark.parametrize("name", FORMATS)
def test_a_stride_is_followed(name):
    v = vector("normal", 300)[::3]
    assert torch.equal(coders(cpu, name)[0](v), coders(reference, name)[0](v))


@thorough
@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=90), st.integers(0, 70))
@example("log 3", bytes(15) + b"\x80\x08", 1)  # wrong in two ways
def test_backends_agree_on_any_bytes(name, data, nnz):
    section = torch.tensor(list(data), dtype=torch.uint8)
    found = coders(cpu, name)[1](section, nnz)
    assert alike(found, coders(reference, name)[1](section, nnz))


@thorough
@given(st.sampled_from(sorted(FORMATS)), WORDS, st.data())
def test_backends_agree_on_damaged_bytes(name, words, data):
    v = torch.tensor(words, dtype=torch.int32).view(torch.float32)
    changed = coders(cpu, name)[0](v)
    if len(changed):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
    found = coders(cpu, name)[1](changed, len(v))
    assert alike(found, coders(reference, name)[1](changed, len(v)))


def test_more_values_than_one_batch_are_counted():
    v = vector("laplace", 1_200_000)
    assert torch.equal(cpu.encode_log(v, 4), reference.encode_log(v, 4))
