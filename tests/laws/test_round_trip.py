"""decode(encode(v)) == v, or within the codec's stated error: every codec."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.cases import CODECS
from tests.strategies import ANY, WHOLE, brief, vectors
from thinwire.codecs import Split
from thinwire.errors import WireError
from thinwire.kernels import strictly_increasing
from thinwire.wire import Packet

# Relative to each value. What is not here is exact, or has a statement of its own in
# the codec's tests.
ERRORS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LOSSY = ("int8", "log", "tiers", "qsgd", "fit", "bloom")

KEYS = st.sampled_from([0, 1, 2**63 - 1])


def within(name, vector, read):
    """Whether a list came back as the card of its codec says."""
    relative = next((e for half, e in ERRORS.items() if half in name), 0.0)
    # The largest that half precision holds; what is beyond stays with the sender.
    limit = 65504.0 if name.endswith("+float16") else float("inf")
    error = (read.values - vector.values.clamp(-limit, limit)).abs()
    return torch.equal(read.indices, vector.indices) and bool(
        (error <= relative * vector.values.abs()).all()
    )


@pytest.mark.parametrize("name", CODECS)
@brief
@given(vectors(values=WHOLE), KEYS)
def test_a_list_comes_back_within_the_stated_error(name, vector, key):
    codec = CODECS[name]
    packet = Packet.parse(codec.encode(vector, key=key).body)
    for nnz in (vector.nnz, None):
        read = codec.decode(packet, vector.size, nnz, key=key)
        assert read.size == vector.size
        assert strictly_increasing(read.indices, vector.size)
        assert len(read.indices) == len(read.values)
        assert read.values.isfinite().all()
        assert any(lossy in name for lossy in LOSSY) or within(name, vector, read)


@pytest.mark.parametrize("name", CODECS)
@brief
@given(vectors(values=ANY), KEYS)
def test_the_same_list_is_the_same_bytes_of_the_stated_length(name, vector, key):
    codec = CODECS[name]
    packet, again = codec.encode(vector, key=key), codec.encode(vector, key=key)
    assert torch.equal(packet.body, again.body)
    assert codec.nbytes(vector.size, vector.nnz) in (None, packet.body.numel())
    read = [codec.decode(p, vector.size, key=key) for p in (packet, again)]
    bits = [vector.values.view(torch.int32) for vector in read]
    assert torch.equal(*bits)


@pytest.mark.parametrize("name", CODECS)
@brief
@given(vectors(values=ANY), KEYS)
def test_a_sender_adopts_what_receivers_decode(name, vector, key):
    codec = CODECS[name]
    packet = codec.encode(vector, key=key)
    adopted = codec.adopt(packet, vector, key=key)
    decoded = codec.decode(packet, vector.size, vector.nnz, key=key)
    assert torch.equal(adopted.indices, decoded.indices)
    bits = adopted.values.view(torch.int32)
    assert torch.equal(bits, decoded.values.view(torch.int32))
    rounding = codec.rounding(vector.size)
    if rounding is not None:
        assert adopted.indices is vector.indices
        by_torch = vector.values.to(rounding).float()
        finite = by_torch.isfinite()
        assert torch.equal(adopted.values[finite], by_torch[finite])


@pytest.mark.parametrize("name", CODECS)
@brief
@given(vectors(), st.data())
def test_a_changed_byte_is_noticed(name, vector, data):
    codec = CODECS[name]
    body = codec.encode(vector).body.clone()
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        codec.decode(Packet.parse(body), vector.size, vector.nnz)


@pytest.mark.parametrize("name", [name for name in CODECS if name != "unsized"])
@brief
@given(vectors(), st.data())
def test_without_a_checksum_it_never_yields_an_invalid_list(name, vector, data):
    whole = CODECS[name]
    codec = Split(whole.index, whole.value, checksum=False)
    body = codec.encode(vector).body.clone()
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        read = codec.decode(Packet.parse(body), vector.size, vector.nnz)
    except WireError:
        return
    assert strictly_increasing(read.indices, vector.size)
    assert len(read.indices) == len(read.values)


@pytest.mark.parametrize("name", CODECS)
@brief
@given(vectors(), st.data())
def test_a_cut_packet_is_refused(name, vector, data):
    body = CODECS[name].encode(vector).body
    with pytest.raises(WireError):
        Packet.parse(body[: data.draw(st.integers(0, len(body) - 1))])
