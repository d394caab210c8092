"""Values that are not finite, in packets that are whole otherwise."""

import math
from contextlib import nullcontext

import pytest
import torch

from tests.interpreted import use_triton
from thinwire.channel import Channel, ListSpec
from thinwire.codecs import (
    BFloat16,
    Bloom,
    Codec,
    Deflate,
    EliasFano,
    Float16,
    Float32,
    Split,
    Zstd,
)
from thinwire.errors import WireError
from thinwire.groups import simulate
from thinwire.kernels import DeferredErrors, by_reference
from thinwire.sparse import SparseVector
from thinwire.wire import Packet

CODECS: dict[str, Codec] = {
    "usual": Split(EliasFano(), BFloat16()),
    "bfloat16": Split(value=BFloat16()),
    "float16": Split(value=Float16()),
    "float32": Split(value=Float32()),
    "deflate": Split(value=Deflate()),
    "zstd": Split(value=Zstd()),
    "bloom": Split(Bloom("p0"), Float32()),
}
BAD = [math.nan, math.inf, -math.inf]


def vector_with(bad, where=-1, nnz=37):
    values = torch.linspace(-3e4, 3e4, nnz)
    values[where] = bad
    return SparseVector(torch.arange(nnz, dtype=torch.int32) * 3, values, 200)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", CODECS)
def test_a_value_that_is_not_finite_is_refused(name, bad):
    if name == "zstd":
        pytest.importorskip("zstandard")
    codec = CODECS[name]
    for where in (0, 18, 36):
        body = codec.encode(vector_with(bad, where)).body
        for backend in (nullcontext(), by_reference()):
            with backend:
                with pytest.raises(WireError, match="not finite"):
                    codec.decode(Packet.parse(body, finite=True), 200)
                kept = codec.decode(Packet.parse(body), 200)
        assert int((~kept.values.isfinite()).sum()) == 1


@pytest.mark.parametrize("name", CODECS)
def test_the_largest_and_the_smallest_values_are_not(name):
    if name == "zstd":
        pytest.importorskip("zstandard")
    largest = 65504.0 if name == "float16" else torch.finfo(torch.bfloat16).max
    for value in (largest, -largest, 1e-45, -0.0):
        body = CODECS[name].encode(vector_with(value)).body
        read = CODECS[name].decode(Packet.parse(body, finite=True), 200)
        assert bool(read.values.isfinite().all())


def received(name, bad, **settings):
    """What rank 0 gets of rank 1's list, which has a bad value."""

    def body(group):
        channel = Channel(group, CODECS[name], **settings)
        sealed = channel.seal(vector_with(bad if group.rank else 1.0))
        lists = channel.all_gather(sealed, expect=ListSpec(200, 37))
        return lists[1].vector.values

    return simulate(2, body)[0]


def test_a_channel_refuses_it_and_names_the_sender():
    with pytest.raises(WireError, match=r"from rank 1: .*not finite"):
        received("usual", math.nan)


def test_a_channel_of_ranks_that_did_not_agree_on_it_passes_it_on():
    assert received("usual", math.inf, finite=False)[-1] == math.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["usual", "float32"])
@pytest.mark.parametrize("bad", [1.0, math.nan, -math.inf])
def test_in_device_memory_it_sets_the_flag_of_its_sender(name, bad, monkeypatch):
    use_triton(monkeypatch, "decode_packet", "all_finite", "flag_mismatch_")
    whole = CODECS[name]
    codec = Split(whole.index, whole.value, checksum=False)

    def body(group, *, finite):
        errors = DeferredErrors(2, torch.device("cpu"))
        channel = Channel(group, codec, deferred_errors=errors, finite=finite)
        sealed = channel.seal(vector_with(bad if group.rank else 1.0))
        got = channel.all_gather(sealed, expect=ListSpec(200, 37))
        errors.start_copy()
        return got[1].vector.values, errors.found()

    wrong = [] if math.isfinite(bad) else [1]
    values, senders = simulate(2, lambda group: body(group, finite=True))[0]
    assert senders == wrong
    values, senders = simulate(2, lambda group: body(group, finite=False))[0]
    assert senders == []
    assert torch.equal(values[-1:].nan_to_num(), torch.tensor([bad]).nan_to_num())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["usual", "float32"])
def test_in_device_memory_without_flags_it_is_refused(name, monkeypatch):
    use_triton(monkeypatch, "decode_packet", "all_finite")
    body = CODECS[name].encode(vector_with(math.nan)).body
    with pytest.raises(WireError, match="not finite"):
        CODECS[name].decode(Packet.parse(body, finite=True), 200)
