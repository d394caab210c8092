"""thinwire.AdamW on rows of sparse embeddings: one step's gradient, whole decay."""

import pytest
import torch
from torch import nn

import thinwire
from tests.optim.oracle import Oracle

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16]
)


def words(weight, options):
    table = nn.Embedding(*weight.shape, sparse=True, _weight=weight)
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1} | options
    return table, thinwire.AdamW(table.parameters(), **options)


@DTYPES
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_rows_of_a_sparse_embedding(dtype, maximize, gaps):
    torch.manual_seed(0)
    memory = torch.randn(50, 8).to(dtype)
    outside = memory[:, 5:].clone()
    weight = memory[:, :5] if gaps else memory[:, :5].contiguous()
    table, optimizer = words(nn.Parameter(weight).data, {"maximize": maximize})
    oracle = Oracle(optimizer)
    for step in range(150):
        optimizer.zero_grad()
        # Some rows wait beyond the steps after which decay is due; duplicates.
        table(torch.randint(6 if step < 140 else 50, (4,))).square().sum().backward()
        oracle.step()
        optimizer.step()
        oracle.check()
    assert torch.equal(memory[:, 5:], outside)


def test_rows_touched_in_every_step_are_torchs_sparse_adams():
    start = torch.randn(20, 5)
    table, optimizer = words(start.clone(), {"weight_decay": 0.0})
    other = nn.Embedding(20, 5, sparse=True, _weight=start.clone())
    theirs = torch.optim.SparseAdam(other.parameters(), lr=1e-2, betas=(0.9, 0.99))
    for _ in range(20):
        rows = torch.randint(20, (6,))
        for each, by in ((table, optimizer), (other, theirs)):
            by.zero_grad()
            each(rows).square().sum().backward()
            by.step()
    torch.testing.assert_close(table.weight, other.weight, rtol=1e-5, atol=1e-6)
