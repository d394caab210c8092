"""AdamW for elements that waited: every operation rounds to float32, in this order."""

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.adam import AdamList, AdamRules, AdamTensors
from thinwire.kernels.dispatch import primitive


@primitive
def adamw_at_(
    tensors: AdamTensors, rules: AdamRules, lists: Sequence[AdamList]
) -> None:
    """Update the listed elements whose gradient is not zero."""
    for each in lists:
        edges = each.offsets.to(each.indices.device)
        cuts = torch.searchsorted(each.indices.long(), edges).tolist()
        for piece, number in enumerate(each.numbers.tolist()):
            if number >= 0:
                indices = each.indices[cuts[piece] : cuts[piece + 1]].long()
                _update(tensors, rules, number, indices - int(each.offsets[piece]))


@primitive
def adamw_(tensors: AdamTensors, rules: AdamRules, *, everything: bool) -> None:
    """Update the elements whose gradient is not zero, or every one."""
    for number, grad in enumerate(tensors.grads):
        indices = torch.arange(grad.numel(), device=grad.device)
        _update(tensors, rules, number, indices, everything=everything)


@primitive
def decay_(tensors: AdamTensors, rules: AdamRules) -> None:
    """Apply the pending decay to all elements."""
    for number, records in enumerate(tensors.records):
        rule = int(rules.which[number])
        waited = (rules.numbers[rule, 4].item() - in_memory(records)[2::3]).long()
        param = in_memory(tensors.params[number])
        param.copy_(param.float() * _decay(rules, rule, waited))


@primitive
def has_zero(tensors: AdamTensors) -> bool:
    """Whether any element of any gradient is exactly zero."""
    return any(bool((grad == 0).any()) for grad in tensors.grads)


def in_memory(tensor: Tensor) -> Tensor:
    """A tensor without gaps as a vector, in the order of its memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _update(
    tensors: AdamTensors,
    rules: AdamRules,
    number: int,
    indices: Tensor,
    *,
    everything: bool = False,
) -> None:
    param, grad, records = (in_memory(each[number]) for each in tensors[:3])
    values = grad[indices]
    if not everything:
        indices, values = indices[values != 0], values[values != 0]
    if len(indices) == 0:
        return
    rule = int(rules.which[number])
    # Numbers in float32 as tensors: a Python number would be rounded elsewhere.
    size, root, eps, sign, step = rules.numbers[rule].to(param.device)
    factors = rules.factors[int(rules.places[rule, 0])].to(param.device)
    last = factors.shape[1] - 1
    value = values.float() * sign
    waited = (step - records[3 * indices + 2]).long()
    steps = waited.float()
    found = factors[:, waited.clamp(max=last)]
    of_momentum, of_mean, of_energy, of_square, reach, of_least = found
    of_mean = torch.where(waited < last, of_mean, 1.0 / steps)
    of_square = torch.where(waited < last, of_square, 1.0 / steps)
    square = value * value
    momentum = of_momentum * records[3 * indices] + of_mean * value
    energy = of_energy * records[3 * indices + 1] + of_square * square
    least = of_least * square
    counted = torch.where(least > energy, least, energy)
    # By way of float64: torch's own root of a float32 is not always the nearest.
    divisor = counted.double().sqrt().float() / root + eps
    change = (size * (momentum * (steps * reach))) / divisor
    kept = param[indices].float() * _decay(rules, rule, waited)
    param[indices] = (kept - change).to(param.dtype)
    records[3 * indices] = momentum
    records[3 * indices + 1] = energy
    records[3 * indices + 2] = step


def _decay(rules: AdamRules, rule: int, waited: Tensor) -> Tensor:
    decays = rules.decays[rule].to(waited.device)
    return decays[waited.clamp(max=int(rules.places[rule, 1]))]
