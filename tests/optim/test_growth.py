"""Gradients that suddenly grow: a late delivery goes no farther than its wait allows.

The energy of such a delivery is nearly all that v has of the new size, and v has few
steps' share of it, where m has most of the delivery.
"""

from math import sqrt

import pytest
import torch
from torch import nn

import thinwire

STEPS = 200
RATE = 1e-3


def moved(kind, grads, betas):
    """How far each element goes in the step of the last gradient."""
    param = nn.Parameter(torch.zeros(len(grads[0])))
    optimizer = kind([param], lr=RATE, betas=betas, weight_decay=0.0)
    for grad in grads:
        before = param.detach().clone()
        param.grad = grad.clone()
        optimizer.step()
    return (param.detach() - before).abs()


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.99), (0.9, 0.999), (0.5, 0.9)])
@pytest.mark.parametrize("growth", [30, 100, 1e4])
@pytest.mark.parametrize("waited", [1, 2, 5, 10, 20, 50])
def test_the_first_large_gradient(betas, growth, waited):
    """Delivered with the small ones before it, and given to torch in its own step."""
    torch.manual_seed(0)
    every = [torch.randn(1000) for _ in range(STEPS)]
    every[-1] = growth * torch.randn(1000).sign()
    sums = [*every[:-waited], *[torch.zeros(1000)] * (waited - 1)]
    # A neighbour that never waits, so that this one does.
    late = [torch.cat([grad, torch.ones(1)]) for grad in [*sums, sum(every[-waited:])]]

    mine = moved(thinwire.AdamW, late, betas)[:-1]
    theirs = moved(torch.optim.AdamW, every, betas)

    beta1, beta2 = betas
    farthest = RATE * max(1, (1 - beta1) / sqrt(1 - beta2))
    # Both have a little momentum of the small gradients before.
    room = farthest * (1.05 + 10 / growth)
    assert theirs.max() < room
    assert mine.max() < waited ** (5 / 8) * room
    if waited == 1:
        assert torch.equal(mine, theirs)
