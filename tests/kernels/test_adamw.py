"""AdamW's kernels: the reference's bits, on every backend."""

import pytest
import torch

from tests.backends import cpu, cuda, reference
from tests.kernels.cuda_inputs import CUDA, DEVICE
from tests.kernels.kernel_inputs import same_bits
from thinwire.kernels import AdamList, AdamRules, AdamTensors
from thinwire.kernels.cpu import threads

BACKENDS = pytest.mark.parametrize(
    "backend", [cpu, pytest.param(cuda, marks=CUDA[0])], ids=["cpu", "cuda"]
)
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16]
)
DENSITIES = pytest.mark.parametrize("density", [0.0, 0.01, 0.4, 1.0])
SIZES = (5, 0, 700, 64, 33, 3011)
STEP, LONGEST = 20, 12


def drawn(dtype, density, device="cpu"):
    """Tensors of some parameters; waits beyond the end of the table are among them."""
    torch.manual_seed(0)
    params = [torch.randn(size).to(dtype) for size in SIZES]
    grads = [
        (torch.randn(s) * (torch.rand(s) < density) * 10.0 ** (i - 3)).to(dtype)
        for i, s in enumerate(SIZES)
    ]
    records = [torch.rand(3 * size) for size in SIZES]
    for each in records:
        each[2::3] = torch.randint(0, STEP, (len(each) // 3,)).float()
    return AdamTensors.of(
        *([t.to(device) for t in ts] for ts in (params, grads, records))
    )


def rules():
    torch.manual_seed(1)
    return AdamRules(
        torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.int32),
        torch.tensor(
            [
                [1e-3, 0.5, 1e-8, 1, STEP],
                [1e-2, 0.7, 1e-6, -1, STEP],
            ]
        ),
        torch.tensor([[1, 0], [0, 7]], dtype=torch.int32),
        torch.rand(2, 6, LONGEST),
        torch.rand(2, 65),
    )


def lists(tensors):
    """Two units; the second one also has a parameter that is not in the call."""
    units = ([0, 1, 2], [3, -1, 4, 5])
    found = []
    for numbers in units:
        grads = [torch.ones(40) if n < 0 else tensors.grads[n].cpu() for n in numbers]
        offsets = torch.tensor([0, *(len(g) for g in grads)]).cumsum(0)
        listed = torch.cat([g != 0 for g in grads])
        listed[::97] = True  # lists are padded with zeros
        indices = listed.nonzero().view(-1).int().to(tensors.grads[0].device)
        found.append(AdamList(indices, offsets, torch.tensor(numbers).int()))
    return found


def on_cpu(tensors):
    return AdamTensors.of(*([tensor.cpu() for tensor in each] for each in tensors[:3]))


def of(grads):
    return AdamTensors.of(grads, grads, grads)


def assert_same(found, wanted):
    for mine, others in zip(on_cpu(found)[:3], wanted[:3], strict=True):
        for a, b in zip(mine, others, strict=True):
            assert same_bits(a, b)


def calls(tensors):
    yield "adamw_at_", (lists(tensors),), {}
    yield "adamw_", (), {"everything": False}
    yield "adamw_", (), {"everything": True}
    yield "decay_", (), {}


@BACKENDS
@DTYPES
@DENSITIES
def test_the_bits_are_the_references(backend, dtype, density):
    device = DEVICE if backend is cuda else "cpu"
    for number in range(4):
        wanted, found = drawn(dtype, density), drawn(dtype, density, device)
        (name, more, options) = list(calls(wanted))[number]
        getattr(reference, name)(wanted, rules(), *more, **options)
        (name, more, options) = list(calls(found))[number]
        getattr(backend, name)(found, rules(), *more, **options)
        assert_same(found, wanted)


@DTYPES
def test_a_list_gives_the_bits_of_a_pass(dtype):
    one, other = drawn(dtype, 0.1), drawn(dtype, 0.1)
    cpu.adamw_at_(one, rules(), lists(one))
    cpu.adamw_(other, rules(), everything=False)
    assert_same(one, other)


def test_other_elements_are_not_written():
    tensors, before = drawn(torch.float32, 0.1), drawn(torch.float32, 0.1)
    cpu.adamw_at_(tensors, rules(), lists(tensors))
    for after, old, grad in zip(
        tensors.params, before.params, tensors.grads, strict=True
    ):
        assert torch.equal(
            (after != old).logical_and(grad == 0).nonzero(), torch.empty(0, 1).long()
        )


@pytest.mark.parametrize("share", [1, 100, 1000])
def test_parts_for_threads(monkeypatch, share):
    monkeypatch.setattr("thinwire.kernels.cpu.adamw._SHARE", share)
    monkeypatch.setattr(threads, "SHARE", share)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for number in range(4):
        wanted, found = drawn(torch.float32, 0.3), drawn(torch.float32, 0.3)
        (name, more, options) = list(calls(wanted))[number]
        getattr(reference, name)(wanted, rules(), *more, **options)
        getattr(cpu, name)(found, rules(), *more, **options)
        assert_same(found, wanted)


@pytest.mark.parametrize(
    "backend",
    [cpu, reference, pytest.param(cuda, marks=CUDA[0])],
    ids=["cpu", "plain", "cuda"],
)
@DTYPES
def test_has_zero(backend, dtype):
    device = DEVICE if backend is cuda else "cpu"
    for zero in (None, 0, 31, 998):
        grads = [torch.ones(size, dtype=dtype, device=device) for size in (7, 0, 999)]
        if zero is not None:
            grads[2][zero] = -0.0
        assert backend.has_zero(of(grads)) == (zero is not None)
    assert not backend.has_zero(of([]))


@pytest.mark.parametrize("zero", [None, 0, 700, 1399])
def test_has_zero_in_parts_for_threads(monkeypatch, zero):
    monkeypatch.setattr(threads, "SHARE", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    grads = [torch.ones(700), torch.ones(700)]
    if zero is not None:
        grads[zero // 700][zero % 700] = 0
    assert cpu.has_zero(of(grads)) == (zero is not None)
