"""HEAVYMIX: the heavy elements of a sketch, and random ones up to the budget.

Ivkin et al., "Communication-efficient distributed SGD with sketching" (NeurIPS 2019):
an element is heavy if the square of its estimate is at least the k-th part of the
estimated energy; the rest of k is drawn uniformly from the other elements. With a large
enough table, a step is a contraction by k / n for any vector. It is for comparison: in
training few elements are heavy, and little is learned.
"""

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.kernels import Hashes
from thinwire.sparse import SparseVector


def heavy_and_random(found: SparseVector, table: Tensor, hashes: Hashes) -> Tensor:
    """The heavy indices in `found`, and random ones, `found.nnz` in all.

    `found` lists the largest estimates of `table`. The hashes determine the draw, so it
    is the same on all ranks.
    """
    k = found.nnz
    energy = kernels.sketch_energy(table).sort().values[hashes.rows // 2].item()
    heavy = found.indices[found.values.double().square() >= energy / k]
    drawn = kernels.shuffled(found.size, k, hashes.spare_key).to(heavy)
    others = drawn[~torch.isin(drawn, heavy)]
    return torch.cat([heavy, others[: k - len(heavy)]]).sort().values
