import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    # Before anyone imports Triton, which decides then whether it interprets.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads wait by spinning: on a busy machine that is most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
