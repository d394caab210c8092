"""Gradients of shards: what `.grad` of a DTensor holds on this rank, and buckets of it.

FSDP reduces the gradients of a module into one buffer, in which the shards of most
parameters lie next to each other: such a run is a bucket without a copy. Where a shard
is padded, because a parameter cannot be cut evenly, a run ends.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from thinwire.hooks.backward_pass import PendingBucket
from thinwire.hooks.shards import Shards
from thinwire.hooks.units import Names


@dataclass(slots=True)
class Shard:
    """A parameter of which this rank has a shard; `grad` is that of the shard."""

    parameter: nn.Parameter
    shape: torch.Size

    @property
    def requires_grad(self) -> bool:
        return self.parameter.requires_grad

    @property
    def dtype(self) -> torch.dtype:
        return self.parameter.dtype

    @property
    def local(self) -> Tensor:
        """The shard; FSDP may replace it in the first forward pass."""
        return _local(self.parameter)

    @property
    def grad(self) -> Tensor | None:
        grad = self.parameter.grad
        return None if grad is None else _local(grad)

    @grad.setter
    def grad(self, local: Tensor | None) -> None:
        if local is None:
            self.parameter.grad = None
            return
        whole: DTensor = self.parameter  # type: ignore[assignment]
        self.parameter.grad = DTensor.from_local(
            local,
            whole.device_mesh,
            whole.placements,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters of a unit whose gradients lie next to each other, as a rule."""

    names: Names
    sizes: tuple[int, ...]
    shards: tuple[Shard, ...]

    def named(self) -> Iterator[tuple[str, Shard]]:
        """The shards with their names."""
        return zip(self.names, self.shards, strict=True)

    def taken(self, used: Collection[str], *, last: bool) -> "Taken":
        """The gradients as a bucket; those of parameters not `used` are old, or zero.

        A copy is made only where they do not lie next to each other.
        """
        grads = [shard.grad for shard in self.shards]
        buffer = _joined(grads, self.sizes)
        copied = buffer is None
        if buffer is None:
            buffer = torch.cat([self._flat(i, grad) for i, grad in enumerate(grads)])
        old = frozenset(name for name in self.names if name not in used)
        bucket = PendingBucket.of(self.names, self.sizes, buffer, last=last, old=old)
        return Taken(self, bucket, grads, copied=copied)

    def _flat(self, number: int, grad: Tensor | None) -> Tensor:
        if grad is not None:
            return grad.reshape(-1)
        shard = self.shards[number]
        device = shard.parameter.device
        return torch.zeros(self.sizes[number], dtype=shard.dtype, device=device)


@dataclass(frozen=True, slots=True)
class Taken:
    """A bucket of a run, and the gradients that it is of; None where there was none."""

    run: Run
    bucket: PendingBucket
    grads: Sequence[Tensor | None]
    copied: bool

    def put_back(self, unused: Collection[str]) -> None:
        """Copy the means of a bucket that is done to where they belong.

        Where no rank has used a parameter, its gradient stays None.
        """
        if not self.copied:
            return
        means = torch.split(self.bucket.buffer, [*self.run.sizes])
        each = zip(self.run.names, self.run.shards, self.grads, means, strict=True)
        for name, shard, grad, mean in each:
            shaped = mean.view(shard.shape)
            if grad is not None:
                grad.copy_(shaped)
            elif name not in unused:
                shard.grad = shaped


@torch.no_grad()  # then it is the local tensor itself
def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local()  # type: ignore[attr-defined,no-any-return]


def runs_of(
    shards: Shards, parameters: Mapping[str, nn.Parameter]
) -> list[tuple[Run, ...]]:
    """The runs of every unit."""
    return [
        tuple(_run(names, shards, parameters) for names in _split(unit, shards))
        for unit in shards.units
    ]


def _run(
    names: Sequence[str], shards: Shards, parameters: Mapping[str, nn.Parameter]
) -> Run:
    return Run(
        tuple(names),
        tuple(shards.pieces[name].numel() for name in names),
        tuple(Shard(parameters[name], shards.pieces[name].shape) for name in names),
    )


def _split(unit: Names, shards: Shards) -> list[list[str]]:
    """The names of a unit, cut after each whose shard is padded in FSDP's buffer."""
    found: list[list[str]] = [[]]
    for name in unit:
        found[-1].append(name)
        padded = torch.Size(shards.cuts[name].shape(0, shards.place.shards))
        if shards.pieces[name].numel() < padded.numel():
            found.append([])
    return [names for names in found if names]


def _joined(grads: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """The gradients as one tensor that shares their memory, if they are adjacent."""
    first = grads[0]
    if first is None:
        return None
    start = following = first.storage_offset()
    storage = first.untyped_storage().data_ptr()
    for grad, size in zip(grads, sizes, strict=True):
        if (
            grad is None
            or grad.storage_offset() != following
            or grad.untyped_storage().data_ptr() != storage
            or grad.dtype != first.dtype
            or not grad.is_contiguous()
        ):
            return None
        following += size
    return first.as_strided((following - start,), (1,), start)
