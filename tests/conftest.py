import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    # Before anyone imports Triton, which decides then whether it interprets.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--laws",
        action="store_true",
        help="try the laws on the full product of collectives, codecs and group sizes",
    )


@pytest.fixture
def full_laws(request: pytest.FixtureRequest) -> bool:
    """Whether the full product of the laws is wanted."""
    return bool(request.config.getoption("laws"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads wait by spinning: on a busy machine that is most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
