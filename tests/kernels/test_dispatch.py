"""Every kernel takes what the reference of its primitive takes."""

import inspect

import pytest
import torch

from thinwire import kernels
from thinwire.kernels.dispatch import implementation, preload

PRIMITIVES = sorted(
    name for name, each in vars(kernels).items() if hasattr(each, "reference")
)


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_kernel_has_the_parameters_of_its_reference(name, backend):
    if backend == "cuda":
        pytest.importorskip("triton", reason="needs Triton")
    wanted = parameters(getattr(kernels, name).reference)
    assert parameters(implementation(name, backend))[: len(wanted)] == wanted


MISSING = {
    "cpu": "flag_mismatch_ merge_all merge_split",
    "cuda": "at_least bloom_positives bloom_resolve bloom_sample decode_dexp "
    "decode_poly "
    "decode_qsgd decode_rice decode_runs decode_varint encode_bloom encode_dexp "
    "encode_poly encode_qsgd encode_rice encode_runs encode_varint estimate_rows "
    "look_up "
    "packet_checksum peel_rows_ row_peaks set_bits shuffled sketch_rows",
}


@pytest.mark.parametrize("backend", MISSING)
def test_the_reference_runs_where_a_kernel_is_missing(backend):
    if backend == "cuda":
        pytest.importorskip("triton", reason="needs Triton")
    missing = [
        name
        for name in PRIMITIVES
        if implementation(name, backend) is getattr(kernels, name).reference
    ]
    assert " ".join(missing) == MISSING[backend]


def test_every_kernel_can_be_imported():
    preload("cpu")
    preload("reference")


def test_a_nested_primitive_is_not_timed_twice():
    seconds: dict[str, float] = {}
    one = (torch.tensor([1]), torch.tensor([2.0]))
    with kernels.timed_primitives(seconds):
        indices, values = kernels.merge_all([one, one])
    assert (indices.tolist(), values.tolist()) == ([1], [4.0])
    assert list(seconds) == ["merge_all"]
