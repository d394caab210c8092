"""Bloom: worked examples, the invariants of every policy, and golden bytes."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.backends import cpu, reference
from tests.codecs.deepreduce_inputs import octets, scattered, supports
from tests.strategies import unhurried
from thinwire.codecs import Bloom, Float32, Split
from thinwire.codecs.bloom import shape_of
from thinwire.kernels import strictly_increasing
from thinwire.kernels.random_words import random_word
from thinwire.kernels.reference.bloom import murmur3
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

POLICIES = ("p0", "p1", "p2", "leftmost", "naive")
FIVE = torch.tensor([0, 5, 8, 9, 14], dtype=torch.int32)
GOLDEN = Path(__file__).parents[1] / "golden" / "bloom"

KEYS = st.sampled_from([0, 1, 7, 2**63 - 1])
RATES = st.sampled_from([None, 0.9, 0.5, 0.2, 0.01, 2.0**-40])


def bits_of(section, count):
    """The bits in the order of their positions."""
    bits = "".join(f"{octet:08b}"[::-1] for octet in section.tolist())
    return bits[:count]


def recall(found, indices):
    return float(torch.isin(indices, found).float().mean())


@pytest.mark.parametrize(
    ("index", "seed", "wanted"),
    [
        (0, 0, 0x2362F9DE),
        (0, 1, 0x78ED212D),
        (0, 2, 0x06DFADFC),
        (1, 0, 0xFBF1402A),
        (5, 0, 0x0E1BBB7E),
        (1000, 0, 0xFFCA7F79),
    ],
)
def test_the_hash_is_murmur3(index, seed, wanted):
    assert int(murmur3(torch.tensor([index]), seed)) == wanted


def test_random_numbers_never_change():
    assert [
        random_word(0, 0),
        random_word(0, 1),
        random_word(1, 0),
        random_word(2**63 - 1, 5),
    ] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0xBFEF8030DDC2D772,
        0xAF9962B06F545DAD,
    ]


def test_a_filter_without_false_positives():
    codec = Bloom("leftmost", fpr=0.1)
    section = codec.encode(FIVE, 16)
    assert bytes(section.tolist()) == bytes.fromhex("c95e62")
    assert bits_of(section, 24) == "100100110111101001000110"
    for policy in POLICIES:
        read = Bloom(policy, fpr=0.1, key=3).decode(section, 16, 5)
        assert read.tolist() == FIVE.tolist()


def test_a_filter_with_one_false_positive():
    section = Bloom(fpr=0.2).encode(FIVE, 16)
    assert bits_of(section, 17) == "10100011111100101"

    def read(policy, key=0):
        return Bloom(policy, fpr=0.2, key=key).decode(section, 16, 5).tolist()

    assert read("p0") == [0, 5, 8, 9, 10, 14]
    assert read("leftmost") == read("naive") == [0, 5, 8, 9, 10]
    resolved = {tuple(read("p2", key)) for key in range(20)}
    assert resolved == {(0, 5, 8, 9, 14), (0, 5, 8, 10, 14)}
    assert len({tuple(read("p1", key)) for key in range(100)}) == 6


@unhurried
@given(supports(), RATES, KEYS)
def test_every_policy_returns_valid_positives(support, fpr, key):
    size, indices = support
    nnz = len(indices)
    section = Bloom(fpr=fpr).encode(indices, size)
    assert Bloom("p1", fpr).nbytes(size, nnz) == section.numel()
    read = {
        policy: Bloom(policy, fpr, key).decode(section, size, nnz)
        for policy in POLICIES
    }
    positives = set(read["p0"].tolist())
    assert set(indices.tolist()) <= positives
    for policy, found in read.items():
        assert found.dtype == indices.dtype
        assert strictly_increasing(found, size)
        assert len(found) == (len(positives) if policy == "p0" else nnz)
        assert set(found.tolist()) <= positives
    assert read["leftmost"].tolist() == sorted(positives)[:nnz]
    assert read["naive"].tolist() == read["leftmost"].tolist()


@unhurried
@given(supports(), RATES)
def test_the_only_member_of_a_conflict_set_is_chosen(support, fpr):
    size, indices = support
    bits, hashes, _ = shape_of(size, len(indices), fpr)
    section = Bloom(fpr=fpr).encode(indices, size)
    positives = Bloom("p0", fpr).decode(section, size, len(indices))
    sets: dict[int, set[int]] = {}
    for seed in range(hashes):
        for index, h in zip(positives, murmur3(positives.long(), seed), strict=True):
            sets.setdefault(int(h) % bits, set()).add(int(index))
    alone = {min(members) for members in sets.values() if len(members) == 1}
    assert alone <= set(indices.tolist())
    assert alone <= set(
        Bloom("p2", fpr, 1).decode(section, size, len(indices)).tolist()
    )


@unhurried
@given(supports(), RATES, KEYS)
def test_fast_kernels_return_the_same_bits(support, fpr, key):
    size, indices = support
    nnz = len(indices)
    bits, hashes, most = shape_of(size, nnz, fpr)
    shape = {"bits": bits, "hashes": hashes}
    section = cpu.encode_bloom(indices, bits, hashes)
    assert torch.equal(section, reference.encode_bloom(indices, bits, hashes))
    for count in (0, nnz, most + 1):
        positives = cpu.bloom_positives(section, size, count, **shape)
        wanted = reference.bloom_positives(section, size, count, **shape)
        assert torch.equal(positives, wanted)
        assert positives.dtype == wanted.dtype
    for k in {nnz, len(positives) // 2, len(positives)}:
        sample = cpu.bloom_sample(positives, k, key)
        assert torch.equal(sample, reference.bloom_sample(positives, k, key))
    resolved = cpu.bloom_resolve(positives, nnz, key, **shape)
    wanted = reference.bloom_resolve(positives, nnz, key, **shape)
    assert torch.equal(resolved, wanted)


def test_fast_kernels_return_the_same_bits_of_a_larger_list():
    size, nnz, fpr = 36_864, 3000, 0.1
    indices = scattered(size, nnz)
    bits, hashes, most = shape_of(size, nnz, fpr)
    shape = {"bits": bits, "hashes": hashes}
    section = cpu.encode_bloom(indices, bits, hashes)
    positives = cpu.bloom_positives(section, size, most, **shape)
    wanted = reference.bloom_positives(section, size, most, **shape)
    assert torch.equal(positives, wanted)
    assert len(positives) > 1.8 * nnz
    for kernel, options in (("bloom_sample", {}), ("bloom_resolve", shape)):
        chosen = getattr(cpu, kernel)(positives, nnz, 99, **options)
        oracle = getattr(reference, kernel)(positives, nnz, 99, **options)
        assert torch.equal(chosen, oracle)


# Size, number, rate; then the expected recall of p1, leftmost and p2.
@pytest.mark.parametrize(
    ("size", "nnz", "fpr", "wanted"),
    [
        (36_864, 368, 0.001, (0.918, 0.912, 0.997)),
        (36_864, 368, 0.002, (0.845, 0.841, 0.989)),
        (36_864, 368, 0.004, (0.705, 0.699, 0.941)),
        (36_864, 368, 0.01, (0.487, 0.479, 0.719)),
        (36_864, 368, 0.02, (0.326, 0.317, 0.522)),
        (262_144, 26_214, 0.01, (0.918, 0.917, 0.983)),
    ],
)
def test_recall(size, nnz, fpr, wanted):
    seeds = range(6 if size < 10**5 else 2)
    fill, extra = 0.0, 0.0
    found = dict.fromkeys(("p1", "leftmost", "p2"), 0.0)
    for seed in seeds:
        indices = scattered(size, nnz, seed)
        section = Bloom(fpr=fpr).encode(indices, size)
        bits = shape_of(size, nnz, fpr).bits
        fill += bits_of(section, bits).count("1") / bits / len(seeds)
        positives = Bloom("p0", fpr, seed).decode(section, size, nnz)
        extra += (len(positives) - nnz) / len(seeds)
        for policy in found:
            read = Bloom(policy, fpr, seed).decode(section, size, nnz)
            found[policy] += recall(read, indices) / len(seeds)
    assert list(found.values()) == pytest.approx(wanted, abs=0.03)
    assert fill == pytest.approx(0.5, abs=0.03)
    assert extra == pytest.approx(fpr * (size - nnz), rel=0.15)


def test_naive_values_are_in_the_wrong_place():
    size, nnz = 36_864, 368
    indices = scattered(size, nnz)
    vector = SparseVector(indices, torch.randn(nnz), size)
    codec = Split(Bloom("naive", fpr=0.001), Float32())
    read = codec.decode(codec.encode(vector), size)
    right = read.to_dense()[indices.long()] == vector.values
    assert float(right.float().mean()) < 0.2
    assert read.values.tolist() == vector.values.tolist()


@pytest.mark.parametrize("policy", ["p0", "p1", "p2", "leftmost"])
def test_chosen_positives_get_their_true_values(policy):
    dense = torch.randn(2000)
    indices = scattered(2000, 100)
    vector = SparseVector(indices, dense[indices.long()], 2000)
    codec = Split(Bloom(policy, fpr=0.1), Float32())
    packet = codec.encode(vector, source=lambda i: dense[i.long()], key=5)
    read = codec.decode(Packet.parse(packet.body), 2000, 100, key=5)
    assert torch.equal(read.values, dense[read.indices.long()])
    assert codec.nbytes(2000, 100) in (None, packet.body.numel())
    assert (read.nnz > 100) == (policy == "p0")


@pytest.mark.parametrize("policy", POLICIES)
def test_golden_bytes(policy):
    values = {0: 1.0, 5: -2.0, 8: 0.5, 9: 3.0, 14: -4.0}
    vector = SparseVector.of(values, 16)
    codec = Split(Bloom(policy, fpr=0.2), Float32(), checksum=False)
    body = (GOLDEN / f"{policy}.bin").read_bytes()
    assert bytes(codec.encode(vector, key=2).body.tolist()) == body
    listed = {
        "p0": {**values, 10: 0.0},
        "p1": {0: 1.0, 8: 0.5, 9: 3.0, 10: 0.0, 14: -4.0},
        "p2": values,
        "leftmost": {0: 1.0, 5: -2.0, 8: 0.5, 9: 3.0, 10: 0.0},
        "naive": {0: 1.0, 5: -2.0, 8: 0.5, 9: 3.0, 10: -4.0},
    }[policy]
    read = codec.decode(Packet.parse(octets(body)), 16, 5, key=2)
    assert read.to_dict() == listed
