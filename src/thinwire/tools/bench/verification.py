"""Whether a reduction delivered the same bits everywhere, and lost nothing."""

from hashlib import blake2b
from math import hypot

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import ReplicaError
from thinwire.tools.bench.methods import Method
from thinwire.tools.bench.ranks import gathered

_PIECE = 1 << 20  # elements that are worked on at a time
_SUMS = 1 << 18  # sums of neighbours that are compared


class Verifier:
    """Compares what methods deliver with the gradients they were given.

    Not element by element, which would be a dense all-reduce for every method, but in
    sums of neighbours with random signs, so that errors do not cancel.
    """

    def __init__(self, grad: Tensor, seed: int) -> None:
        size = grad.numel()
        self._chunk = max(1, size // _SUMS)
        generator = torch.Generator().manual_seed(seed)
        signs = torch.empty(size, dtype=torch.int8)
        self._signs = signs.random_(0, 2, generator=generator).mul_(2).sub_(1)
        self._before = _summed(self._sums(grad))
        self._magnitudes = _summed(self._sums(grad, magnitudes=True))

    def check_identical(self, mean: Tensor, label: str) -> None:
        """Raise `ReplicaError` unless all ranks have the same bits."""
        digest = blake2b(mean.numpy().data).digest()
        if len(set(gathered(digest))) > 1:
            raise ReplicaError(f"{label}: ranks got different means")

    def check_conserved(self, mean: Tensor, method: Method, label: str) -> None:
        """Raise `ReplicaError` unless delivered and residual sum to the gradients."""
        if method.tolerance is None:
            return
        ranks = dist.get_world_size()
        residual = method.residual()
        found = ranks * self._sums(mean)
        magnitude = self._magnitudes + ranks * self._sums(mean, magnitudes=True)
        if residual is not None:
            found += _summed(self._sums(residual))
            magnitude += _summed(self._sums(residual, magnitudes=True))
        gap = (found - self._before).abs()
        if not bool((gap <= method.tolerance * magnitude).all()):
            worst = float((gap / magnitude).max())
            raise ReplicaError(
                f"{label}: delivered and residual differ from the gradients by "
                f"{worst:.1e} of them, more than {method.tolerance:.1e}"
            )

    def _sums(self, vector: Tensor, *, magnitudes: bool = False) -> Tensor:
        sums = []
        # In parts: a copy of everything would not fit beside many methods.
        pieces = (torch.split(each, self._piece) for each in (vector, self._signs))
        for part, signs in zip(*pieces, strict=True):
            # Cast first: to multiply mixed types takes twice as long.
            signed = part.abs() if magnitudes else part * signs.to(part.dtype)
            whole = signed.numel() // self._chunk * self._chunk
            rows = signed[:whole].view(-1, self._chunk)
            sums += [rows.sum(1, dtype=torch.float64)]
            sums += [signed[whole:].sum(dtype=torch.float64).view(1)]
        return torch.cat(sums)

    @property
    def _piece(self) -> int:
        return max(1, _PIECE // self._chunk) * self._chunk


def _summed(mine: Tensor) -> Tensor:
    total = mine.clone()
    dist.all_reduce(total)
    return total


def distance(mean: Tensor, truth: Tensor) -> float:
    """|mean - truth| / |truth|, in L2 norms."""
    pieces = (torch.split(each, _PIECE) for each in (mean, truth))
    apart = [float((a - b).norm()) for a, b in zip(*pieces, strict=True)]
    length = float(torch.linalg.vector_norm(truth))
    return hypot(*apart) / length if length else 0.0
