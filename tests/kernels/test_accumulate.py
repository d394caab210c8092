import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.backends import cpu, reference
from tests.kernels.kernel_inputs import SIZES, VECTORS, same_bits, vector
from thinwire import kernels

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1.0, 0.3, 2.0**-16])
def test_the_reference_agrees(dtype, size, scale):
    for name in VECTORS:
        x, grad = vector("octaves", size), vector(name, size).to(dtype)
        y, again, old = x.clone(), grad.clone(), x.clone()
        before, same = torch.empty(size), torch.empty(size)
        cpu.accumulate_(x, grad, offset=0, scale=scale, before=before)
        reference.accumulate_(y, again, offset=0, scale=scale, before=same)
        assert same_bits(before, old)
        assert same_bits(same, old)
        # Which NaN comes out of a sum of two is the processor's own business.
        assert same_bits(x.nan_to_num(7), y.nan_to_num(7))
        assert torch.equal(x.isnan(), y.isnan())
        assert same_bits(grad, torch.zeros_like(grad))


def test_a_strided_gradient_is_consumed_too():
    wide = torch.randn(400_000)
    x, grad, wanted = torch.zeros(200_000), wide[::2], wide[::2].clone()
    cpu.accumulate_(x, grad, offset=0, scale=1.0)
    assert torch.equal(x, wanted)
    assert not grad.any()
    assert wide[1::2].all()


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="3 to 6 are not in a vector of 5"):
        cpu.accumulate_(torch.zeros(5), torch.ones(3), offset=3, scale=1.0)
    with pytest.raises(ValueError, match="float64"):
        cpu.accumulate_(torch.zeros(5), torch.ones(5).double(), offset=0, scale=1.0)
    with pytest.raises(ValueError, match="contiguous"):
        cpu.accumulate_(torch.zeros(10)[::2], torch.ones(5), offset=0, scale=1.0)


class Temporaries(TorchDispatchMode):
    """How many elements the largest new tensor has."""

    def __init__(self, *known):
        super().__init__()
        self.known = {tensor.data_ptr() for tensor in known}
        self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.data_ptr() not in self.known:
            inside = any(
                isinstance(arg, torch.Tensor)
                and result.untyped_storage().data_ptr()
                == arg.untyped_storage().data_ptr()
                for arg in args
            )
            self.largest = max(self.largest, 0 if inside else result.numel())
        return result


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_copy_of_the_gradient(dtype):
    size = 300_000
    x, grad = vector("octaves", size), vector("normal", size).to(dtype)
    y = x + grad.float()
    with Temporaries(x, grad) as temporaries:
        kernels.accumulate_(x, grad)
    assert torch.equal(x, y)
    assert not grad.any()
    assert temporaries.largest < size // 4
