"""Updates of whole rows, for gradients of `nn.Embedding(sparse=True)`."""

import torch
from torch import Tensor

from thinwire.kernels import AdamRules
from thinwire.optim.moments import RECORDS, State


def update_rows_(param: Tensor, grad: Tensor, state: State, rules: AdamRules) -> None:
    """Update the rows that a coalesced COO gradient has; no other is read.

    A row's gradient is that of this step alone, however long it was not touched, so
    its moments do one step, as in torch.optim.SparseAdam. Its decay is that of all
    steps since the last one. `rules` has the rule of this parameter.
    """
    rule = int(rules.which[0])
    numbers = rules.numbers[rule].to(param.device)
    size, root, eps, sign, step = numbers
    _, pending = rules.places[rule].tolist()
    place = tuple(grad.indices())
    value = grad.values().float() * sign
    # As after one step.
    old, new, old2, new2 = rules.factors[int(rules.places[rule, 0]), :4, 1].to(
        param.device
    )
    exp_avg, exp_avg_sq, delivered_at = (state[name] for name in RECORDS)
    waited = (step - delivered_at[place]).long()
    decay = rules.decays[rule].to(param.device)[waited.clamp(max=pending)]
    momentum = old * exp_avg[place] + new * value
    energy = old2 * exp_avg_sq[place] + new2 * (value * value)
    # By way of float64: torch's own root of a float32 is not always the nearest.
    divisor = energy.double().sqrt().float() / root + eps
    kept = param[place].float() * decay
    param[place] = (kept - (size * momentum) / divisor).to(param.dtype)
    exp_avg[place], exp_avg_sq[place] = momentum, energy
    delivered_at[place] = torch.ones_like(momentum) * step
