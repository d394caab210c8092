"""Sparse-gradient buckets come out as plain DDP's do."""

import pytest
import torch
from training import WIDTH, wrap

import thinwire
from thinwire.errors import WireError
from thinwire.groups import simulate
from thinwire.hooks.rows import mean_of_rows
from workers import pool


def embed(group, attached, empty_rank):
    model = wrap("words")
    if attached:
        thinwire.attach(model, "topk")
    generator = torch.Generator().manual_seed(group.rank)
    x = torch.randn(6, WIDTH, generator=generator)
    if group.rank == empty_rank:
        x = x[:0]
    model(x).square().sum().backward()
    return model.module.table.weight.grad.to_dense()


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("empty_rank", [None, 1])
def test_rows_are_averaged_exactly(ranks, empty_rank):
    ours = pool(ranks).run(embed, True, empty_rank)
    ddp = pool(ranks).run(embed, False, empty_rank)
    for each in ours:
        assert torch.equal(each, ours[0])
        torch.testing.assert_close(each, ddp[0])


def rows(rank: int) -> torch.Tensor:
    indices = torch.tensor([[rank, 3, 3]])
    values = torch.ones(3, 2) * (rank + 1)
    return torch.sparse_coo_tensor(indices, values, (5, 2), check_invariants=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_repeated_rows_add_up(ranks):
    expected = sum(rows(rank).to_dense() for rank in range(ranks)) / ranks
    for mean in simulate(ranks, lambda g: mean_of_rows(rows(g.rank), g)):
        assert torch.equal(mean.to_dense(), expected)


class Lying:
    """A group whose peers send other bytes than they should."""

    def __init__(self, group, change):
        self._group, self._change = group, change
        self.rank, self.size = group.rank, group.size

    def all_gather(self, body, *, nbytes):
        bodies = self._group.all_gather(body, nbytes=nbytes)
        bodies[1] = self._change(bodies[1].clone())
        return bodies


def patch(at, value):
    def change(body):
        body[at] = value
        return body

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body[:-1], "do not hold"),
        (lambda body: body[:3], "3 bytes"),
        (patch(0, 200), "do not hold"),
        (patch(7, 128), "do not hold"),
        (patch(8, 99), "outside"),
        (patch(15, 128), "outside"),
    ],
)
def test_bytes_from_a_peer_are_not_believed(change, message):
    with pytest.raises(WireError, match=message):
        simulate(2, lambda g: mean_of_rows(rows(g.rank), Lying(g, change)))
