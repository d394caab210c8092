"""Gradients of benchmarks: Laplace, in layers, half of them common to all ranks."""

import pytest
import torch

from thinwire.tools.bench.gradients import Gradients

PERIOD = 1 << 16


def drawn(size, rank, steps=1, seed=0):
    gradients, grad = Gradients(size, rank, seed), torch.empty(size)
    for _ in range(steps):
        gradients.fill_(grad)
    return grad


def test_half_of_the_variance_is_common_to_all_ranks():
    layers = [
        torch.corrcoef(torch.stack(parts))[0, 1].item()
        for parts in zip(
            *(drawn(3 * PERIOD, rank).split(PERIOD) for rank in (0, 5)), strict=True
        )
    ]
    assert layers == pytest.approx([0.5] * 3, abs=0.03)


def test_signs_are_even_and_tails_heavy():
    layer = drawn(PERIOD, 1)
    normal = layer / layer.std()
    assert normal.mean().item() == pytest.approx(0, abs=0.02)
    # Laplace's is 6; of the sum of two, each with half of the variance, it is 4.5.
    assert normal.pow(4).mean().item() == pytest.approx(4.5, abs=0.3)


def test_layers_have_scales_of_their_own():
    first, second, rest = drawn(2 * PERIOD + 7, 0).split(PERIOD)
    assert len(rest) == 7
    assert abs(float(first.std() / second.std()) - 1) > 0.05


def test_every_step_is_fresh_and_every_run_the_same():
    assert not torch.equal(drawn(1000, 0), drawn(1000, 0, steps=2))
    assert not torch.equal(drawn(1000, 0), drawn(1000, 0, seed=1))
    assert torch.equal(drawn(1000, 0, steps=2), drawn(1000, 0, steps=2))
