"""Packets that are checked on a device: errors are recorded, and raised later."""

from types import SimpleNamespace

import pytest
import torch

from tests.interpreted import use_triton
from thinwire import kernels
from thinwire.channel import Channel, ListSpec, Sealed
from thinwire.codecs import BFloat16, EliasFano, Int8, LogQuant, Split
from thinwire.collectives import AllGather
from thinwire.errors import AgreementError, InconsistentStateError, WireError
from thinwire.groups import simulate
from thinwire.hooks.engine import Engine
from thinwire.kernels import DeferredErrors
from thinwire.layout import Layout
from thinwire.reducers import Pipeline
from thinwire.sparse import SparseVector

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CHECKING = (
    "flag_mismatch_",
    "decode_elias_fano",
    "decode_int8",
    "decode_log",
    "decode_packet",
    "strictly_increasing",
)
VECTOR = SparseVector.of({i * i: float(i) for i in range(1, 20)}, size=400)
CODECS = {
    "default": Split(EliasFano(), BFloat16(), checksum=False),
    "int8": Split(EliasFano(), Int8(), checksum=False),
    "log": Split(EliasFano(), LogQuant(4), checksum=False),
    "raw": Split(checksum=False),
}


def swap(codec, damage):
    """What rank 0 gets of a damaged packet, and the sender it names."""

    def body(group):
        errors = DeferredErrors(2, torch.device("cpu"))
        channel = Channel(group, codec, deferred_errors=errors)
        sealed = channel.seal(VECTOR)
        if group.rank == 1:
            sent = sealed.body.clone()
            damage(sent)
            sealed = Sealed(sent, lambda vector=sealed.vector: vector)
        spec = ListSpec(VECTOR.size, VECTOR.nnz)
        peer = 1 - group.rank
        (got,) = channel.exchange([sealed], dst=peer, src=peer, expect=[spec])
        errors.start_copy()
        return got.vector, errors.found()

    return simulate(2, body)[0]


def set_bytes(body, where):
    body[where] = 255


@pytest.mark.parametrize("name", CODECS)
def test_a_valid_packet_sets_no_flag(name, monkeypatch):
    use_triton(monkeypatch, *CHECKING)
    vector, senders = swap(CODECS[name], lambda body: None)
    assert senders == []
    assert torch.equal(vector.indices, VECTOR.indices)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("default", slice(0, 1)),  # the magic number
        ("default", slice(16, 17)),  # the number of entries
        ("default", slice(40, 46)),  # the indices
        ("raw", slice(35, 36)),  # the first index
        ("int8", slice(-24, -22)),  # the scale, of the sign that none has
        ("log", slice(-48, -40)),  # the levels
    ],
)
def test_what_is_wrong_is_noted_with_its_sender(name, where, monkeypatch):
    use_triton(monkeypatch, *CHECKING)
    _, senders = swap(CODECS[name], lambda body: set_bytes(body, where))
    assert senders == [1]


class Damaging:
    """A group that can damage the first byte of its packets."""

    def __init__(self, group):
        self._group = group
        self.damaged = False

    def __getattr__(self, name):
        return getattr(self._group, name)

    def all_gather(self, body, *, nbytes):
        bodies = [body.clone() for body in self._group.all_gather(body, nbytes=nbytes)]
        if self.damaged:
            bodies[1][0] = 0
        return bodies


def test_a_step_later_it_is_raised(monkeypatch):
    use_triton(monkeypatch, *CHECKING)
    pipeline = Pipeline(AllGather(0.1), CODECS["default"], on_nonfinite="unchecked")

    def body(group):
        group = Damaging(group)
        state = pipeline.init(Layout.flat(100))
        state.deferred_errors = DeferredErrors(2, torch.device("cpu"))
        pipeline.reduce_([torch.randn(100)], group, state)
        state.raise_deferred_errors(wait=True)
        group.damaged = group.rank == 0
        pipeline.reduce_([torch.randn(100)], group, state)
        if group.rank:
            return state.raise_deferred_errors(wait=True)
        for _ in range(2):  # also at the second call
            with pytest.raises(WireError, match="from rank 1: a packet that is not"):
                pipeline.reduce_([torch.randn(100)], group, state)
        return None

    simulate(2, body)


def test_a_refusal_in_between_does_not_hide_it():
    def raise_error(*, wait):
        raise WireError("a packet that is not what the codec writes")

    unit = SimpleNamespace(raise_deferred_errors=raise_error)
    units = SimpleNamespace(device=torch.device("cpu"), existing_states=[unit])
    engine = Engine(None, units, {}, whole_model=False, per_name=False)
    engine.fail(AgreementError("ranks disagree on density"))
    with pytest.raises(InconsistentStateError, match="not what the codec writes"):
        engine.drain()


def test_the_header_in_device_memory_is_known_beforehand():
    for codec in CODECS.values():
        packet = codec.encode(VECTOR)
        header = codec.header(VECTOR.size, VECTOR.nnz)
        assert bytes(packet.body[:32].tolist()) == header
        assert kernels.on_device(header, torch.device("cpu")).tolist() == list(header)
