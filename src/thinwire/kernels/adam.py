"""What the kernels of AdamW take: tensors of many parameters, and their rules."""

from typing import NamedTuple

from torch import Tensor


class AdamTensors(NamedTuple):
    """The tensors of each parameter; elements are in the order of their memory.

    A parameter and its gradient have the same dtype (float32, bfloat16 or float16) and
    the same strides, without gaps. Its records are float32, three numbers for each
    element next to each other: momentum, energy, and the step of its last delivery.
    """

    params: list[Tensor]
    grads: list[Tensor]
    records: list[Tensor]


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
