"""The checksum of packets is XXH3, as the wire format says."""

import pytest
import torch
import xxhash

from tests.backends import cpu, reference

LENGTHS = [*range(4, 36), 127, 128, 129, 130, 136, 137, 255, 256, 257, 1000, 5003]


@pytest.mark.parametrize("backend", [cpu, reference], ids=["cpu", "plain"])
@pytest.mark.parametrize("words", LENGTHS)
def test_it_is_the_low_half_of_xxh3_without_itself(backend, words):
    generator = torch.Generator().manual_seed(words)
    body = torch.randint(256, (8 * words,), generator=generator).byte()
    blank = body.clone()
    blank[28:32] = 0
    wanted = xxhash.xxh3_64_intdigest(blank.numpy().tobytes()) & 0xFFFFFFFF
    assert backend.packet_checksum(body) == wanted
