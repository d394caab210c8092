"""What is in DDP's buckets: names, and which gradients are old ones.

DDP puts what `.grad` holds of a parameter that a pass did not use into its bucket. That
is what an earlier pass has delivered, if it was not reset since. Where no rank has used
the parameter, DDP ignores the mean, so what was delivered must not be added to the
residual: it would be delivered again.
"""

from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from thinwire.hooks.inspection import trained_parameters
from thinwire.hooks.units import Names


class BucketContents:
    """Reads a model's buckets; if parameters may be unused, watches which are."""

    def __init__(self, model: DistributedDataParallel) -> None:
        parameters = trained_parameters(model) if model.find_unused_parameters else {}
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._bucket_names: dict[tuple[int, ...], Names] = {}
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

    def names(self, bucket: GradBucket) -> Names:
        """The names of the parameters in a bucket."""
        key = tuple(map(id, bucket.parameters()))
        if key not in self._bucket_names:
            self._bucket_names[key] = tuple(self._names[each] for each in key)
        return self._bucket_names[key]

    def old(self, bucket: GradBucket) -> dict[str, tuple[int, int]]:
        """Where a bucket has old gradients, by name; called once with each bucket."""
        found, start = {}, 0
        for parameter in bucket.parameters() if self._watched else ():
            key, stop = id(parameter), start + parameter.numel()
            unused = key in self._watched and key not in self._used
            if unused and parameter.grad is not None:
                found[self._names[key]] = start, stop
            start = stop
        if bucket.is_last():
            self._used.clear()
        return found
