"""What the kernels of AdamW take: tensors of many parameters, and their rules."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class AdamTensors(NamedTuple):
    """The tensors of each parameter; elements are in the order of their memory.

    A parameter and its gradient have the same dtype (float32, bfloat16 or float16) and
    the same strides, without gaps. Its records are float32, three numbers for each
    element next to each other: momentum, energy, and the step of its last delivery.

    For kernels, `rows` has five numbers for each parameter: the addresses of it, its
    gradient and its records, the kind of its dtype, and its size.
    """

    params: list[Tensor]
    grads: list[Tensor]
    records: list[Tensor]
    rows: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        records: Sequence[Tensor],
    ) -> "AdamTensors":
        """With the rows for these tensors."""
        rows = np.array(
            [
                (
                    *(each.data_ptr() for each in three),
                    _KINDS[three[0].dtype],
                    three[0].numel(),
                )
                for three in zip(params, grads, records, strict=True)
            ],
            np.int64,
        ).reshape(-1, 5)
        return cls([*params], [*grads], [*records], rows)

    @contextmanager
    def given(self, grads: Sequence[Tensor]) -> Iterator["AdamTensors"]:
        """With other gradients of the same layouts, which are not kept."""
        self.grads[:] = grads
        self.rows[:, 1] = [*map(Tensor.data_ptr, grads)]
        try:
            yield self
        finally:
            self.grads.clear()


class AdamRules(NamedTuple):
    """What the parameters of a call have in common, as small tables on the CPU.

    Attributes:
        which: The rule of each parameter, int32.
        numbers: For each rule, float32: the learning rate over the bias correction,
            the root of that of the energy, epsilon, 1 (-1 to maximize), and the number
            of this step.
        places: For each rule, int32: its table in `factors`, and how many steps of
            decay are pending, this one included.
        factors: For each pair of betas, float32: six rows by the steps waited, of the
            old momentum, the gradient, the old energy, the gradient's square and a
            step, and of the square again: the least energy that a step counts with.
            The last column stands for all longer waits, but the factors of the
            gradient and its square are then 1 / steps.
        decays: For each rule, float32: the product of the last n factors of decay.

    """

    which: Tensor
    numbers: Tensor
    places: Tensor
    factors: Tensor
    decays: Tensor


class AdamList(NamedTuple):
    """Delivered elements of some parameters that lie one after the other in a unit.

    `indices` ascend and count in the unit; piece i begins at `offsets[i]` and is that
    of parameter `numbers[i]` of the call, or of none if that is -1. Both are on the
    CPU, int64 and int32; the last offset is the unit's size.
    """

    indices: Tensor
    offsets: Tensor
    numbers: Tensor
