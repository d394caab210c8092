"""What is in DDP's buckets: names, and which gradients are old ones.

DDP puts what `.grad` holds of a parameter that a pass did not use into its bucket. That
is what an earlier pass has delivered, if it was not reset since. Where no rank has used
the parameter, DDP ignores the mean, so what was delivered must not be added to the
residual: it would be delivered again.
"""

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from thinwire.hooks.backward_pass import PendingBucket
from thinwire.hooks.inspection import named_parameters, trained_parameters
from thinwire.hooks.units import Names


class BucketContents:
    """Reads a model's buckets; if parameters may be unused, watches which are."""

    def __init__(self, model: DistributedDataParallel) -> None:
        parameters = trained_parameters(model) if model.find_unused_parameters else {}
        self._names = {id(p): name for name, p in named_parameters(model.module)}
        self._known: dict[tuple[int, ...], tuple[Names, tuple[int, ...]]] = {}
        self._watched = frozenset(map(id, parameters.values()))
        # Those that got a gradient since the last reduced pass.
        self._used: set[int] = set()
        used = self._used  # the hooks shall not keep this object alive

        def note(parameter: Tensor) -> None:
            used.add(id(parameter))

        self._hooks = [
            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for parameter in parameters.values()
        ]

    def close(self) -> None:
        """Watch no longer."""
        for each in self._hooks:
            each.remove()

    def pending(self, bucket: GradBucket) -> PendingBucket:
        """A bucket for the comm thread; called once with each bucket."""
        return PendingBucket.of(
            *self._parameters(bucket),
            bucket.buffer(),
            last=bucket.is_last(),
            old=self._old(bucket),
        )

    def _parameters(self, bucket: GradBucket) -> tuple[Names, tuple[int, ...]]:
        """The names of the parameters in a bucket, and their numbers of elements."""
        inside = bucket.parameters()
        key = tuple(map(id, inside))
        if key not in self._known:
            names = tuple(self._names[each] for each in key)
            self._known[key] = names, tuple(p.numel() for p in inside)
        return self._known[key]

    def _old(self, bucket: GradBucket) -> frozenset[str]:
        """The names of old gradients in a bucket."""
        unused = {
            id(parameter)
            for parameter in (bucket.parameters() if self._watched else ())
            if parameter.grad is not None
        }
        unused &= self._watched - self._used
        if bucket.is_last():
            self._used.clear()
        return frozenset(self._names[each] for each in unused)
