"""A step with the CUDA kernels reads nothing back; tested without a device.

What would make the host wait is refused: a number out of a tensor, a size that follows
from the data, a comparison, bytes as a list. Only copies are not seen; for those there
are tests on a device.
"""

import inspect
from threading import get_ident

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.interpreted import use_triton
from thinwire.codecs import BFloat16, EliasFano, LogQuant, Split
from thinwire.collectives import GTopK, SparDL
from thinwire.groups import simulate
from thinwire.kernels import DeferredErrors
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

READING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique")
CODEC = Split(EliasFano(), BFloat16(), checksum=False)
LEVELS = Split(EliasFano(), LogQuant(3), checksum=False)
PIPELINES = [
    Pipeline(SparDL(0.05), CODEC, on_nonfinite="unchecked"),
    Pipeline(GTopK(0.05), CODEC, on_nonfinite="unchecked"),
    Pipeline(GTopK(0.05), LEVELS, on_nonfinite="unchecked"),
]


class Refusing(TorchDispatchMode):
    """An error where thinwire itself reads a tensor; the interpreter may."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().partition("::")[2].partition(".")[0]
        mask = name.startswith("index") and any(
            isinstance(each, torch.Tensor) and each.dtype == torch.bool
            for each in (args[1] if len(args) > 1 and isinstance(args[1], list) else ())
        )
        if (name in READING or name.startswith("unique") or mask) and not interpreted():
            raise AssertionError(f"{name} reads a tensor")
        return function(*args, **(kwargs or {}))


def interpreted():
    frame = inspect.currentframe()
    while frame is not None:
        if "/triton/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@pytest.mark.parametrize("pipeline", PIPELINES, ids=["spardl", "gtopk", "levels"])
def test_nothing_is_read(pipeline, monkeypatch):
    use_triton(monkeypatch)
    tolist = torch.Tensor.tolist
    watching = set()

    def refuse(tensor):
        if get_ident() in watching and not interpreted():
            raise AssertionError("a tensor is read as a list")
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", refuse)

    def body(group):
        torch.manual_seed(group.rank)
        state = pipeline.init(Layout.flat(301))
        state.deferred_errors = DeferredErrors(group.size, torch.device("cpu"))
        pipeline.reduce_([torch.randn(301)], group, state)
        state.raise_deferred_errors(wait=True)
        grad = torch.randn(301)
        with Refusing():
            watching.add(get_ident())
            pipeline.reduce_([grad], group, state)
            watching.discard(get_ident())
        return grad

    first, second = simulate(2, body)
    assert torch.equal(first, second)
    assert first.any()


def test_reads_are_refused():
    with Refusing():
        for read in (
            lambda x: x.sum().item(),
            lambda x: bool(x[0] > 0),
            lambda x: x[x > 0],
            lambda x: x.nonzero(),
            lambda x: torch.equal(x, x + 1),
        ):
            with pytest.raises(AssertionError, match="reads a tensor"):
                read(torch.ones(3))
