"""HEAVYMIX: what certainly stands out, and the rest of the budget at random.

Ivkin et al., "Communication-efficient distributed SGD with sketching" (NeurIPS 2019):
an element is heavy if the square of its estimate is at least the k-th part of the
estimated energy; what is left of k goes to other elements, all equally likely. With a
large enough table that makes a step a contraction by k / n, whatever the vector.
"""

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.kernels import Hashes
from thinwire.sparse import SparseVector


def heavy_and_random(found: SparseVector, table: Tensor, hashes: Hashes) -> Tensor:
    """As many indices as `found` lists, which are the largest estimates of a table.

    All ranks draw alike, because the draw follows from the hashes.
    """
    k = found.nnz
    energy = kernels.sketch_energy(table).sort().values[hashes.rows // 2].item()
    heavy = found.indices[found.values.double().square() >= energy / k]
    drawn = kernels.shuffled(found.size, k, hashes.spare_key).to(heavy)
    others = drawn[~torch.isin(drawn, heavy)]
    return torch.cat([heavy, others[: k - len(heavy)]]).sort().values
