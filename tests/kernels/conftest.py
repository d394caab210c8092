import pytest
import torch


@pytest.fixture
def lists_for_short_blocks(monkeypatch):
    """Blocks of any length are selected from through lists of candidates."""
    from thinwire.kernels.cuda import buffer

    monkeypatch.setattr(buffer, "SHORT", 0)


@pytest.fixture
def dirty_memory():
    """Fill what `torch.empty` returns with ones."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)
