"""Hypothesis strategies, and settings for slow machines."""

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from thinwire.kernels import index_dtype
from thinwire.sparse import SparseVector

unhurried = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)

# For what is tried with every codec there is.
brief = settings(unhurried, max_examples=15)

SIZES = st.sampled_from([0, 1, 2, 7, 64, 65, 1000])
WHOLE = st.integers(-(2**18), 2**18).map(float)
ANY = st.floats(width=32)


@st.composite
def vectors(draw, size=SIZES, values=WHOLE):
    """A sparse vector; zero entries, empty lists and full ones included."""
    size = draw(size)
    indices = draw(st.sets(st.integers(0, size - 1), max_size=40)) if size else set()
    return SparseVector(
        torch.tensor(sorted(indices), dtype=index_dtype(size)),
        torch.tensor([draw(values) for _ in indices], dtype=torch.float32),
        size,
    )


@st.composite
def families(draw, most=6):
    """Some sparse vectors of one size."""
    size = draw(SIZES)
    return draw(st.lists(vectors(st.just(size)), min_size=1, max_size=most))
