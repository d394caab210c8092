"""Buckets of sparse gradients get the same means as with plain DDP."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from tests.hooks.training import WIDTH, wrap
from tests.workers import pool
from thinwire.collectives import S2, GatherRows, UnionReduce
from thinwire.errors import AgreementError, ConfigError, WireError
from thinwire.groups import simulate
from thinwire.reducers.sparse_gradients import SparseGradients, read

WAYS = ["gather", "union", "s2", "cheapest"]


class Films(nn.Module):
    """Two embeddings with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(40, 8, sparse=True)
        self.films = nn.Embedding(200, 8, sparse=True)
        self.out = nn.Linear(8, 1)

    def forward(self, pairs):
        users, films = pairs.t()
        return self.out(self.users(users) * self.films(films))


def pairs(rank: int, step: int, empty_rank: int | None) -> torch.Tensor:
    """Users and films of a batch, with repetitions."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    count = 0 if rank == empty_rank else 24
    users = torch.randint(0, 40, (count,), generator=generator)
    return torch.stack([users, users**2 % 200], dim=1)


def recommend(group, sparse, optimizer, empty_rank):
    """The parameters after some steps; of plain DDP where `sparse` is None."""
    torch.manual_seed(0)
    model = DDP(Films())
    if sparse is not None:
        state = thinwire.attach(model, "dense", sparse=sparse)
    rows = [*model.module.users.parameters(), *model.module.films.parameters()]
    optimizers = [
        (torch.optim.SparseAdam if optimizer == "adam" else torch.optim.SGD)(rows, 0.1),
        torch.optim.SGD(model.module.out.parameters(), 0.1),
    ]
    for step in range(4):
        model.zero_grad()
        model(pairs(group.rank, step, empty_rank)).square().sum().div(24).backward()
        for each in optimizers:
            each.step()
    if sparse is not None:
        state.check_replicas()
    return {name: p.detach().clone() for name, p in model.module.named_parameters()}


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("empty_rank", [None, 1])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_is_that_of_plain_ddp(ranks, empty_rank, optimizer):
    ddp = pool(ranks).run(recommend, None, optimizer, empty_rank)[0]
    for sparse in WAYS:
        ours = pool(ranks).run(recommend, sparse, optimizer, empty_rank)
        for name, parameter in ours[0].items():
            torch.testing.assert_close(parameter, ddp[name], atol=1e-4, rtol=1e-5)


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


def rows(rank: int, *shape: int) -> torch.Tensor:
    indices = torch.tensor([[rank, 3, 3]])
    if len(shape) > 2:
        indices = torch.cat([indices, torch.tensor([[1, 0, 0]])])
    values = torch.ones(3, shape[-1]) * (rank + 1)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


@pytest.mark.parametrize("collective", [GatherRows(), UnionReduce(), S2()], ids=str)
@pytest.mark.parametrize("shape", [(5, 2), (5, 2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_repeated_rows_add_up(ranks, dtype, shape, collective):
    expected = sum(rows(rank, *shape).to_dense() for rank in range(ranks)) / ranks
    expected = expected.to(dtype)

    def means(group):
        sparse = SparseGradients(collective)
        grad = rows(group.rank, *shape).to(dtype)
        return [sparse.mean("table", grad, group, step) for step in range(3)]

    for found in simulate(ranks, means):
        for mean in found:
            torch.testing.assert_close(mean.to_dense(), expected)


def resumed(group, at):
    """Gradients of some steps; at one of them, everything is saved and made anew."""
    sparse = SparseGradients(S2(), seed=3)
    found = []
    for step in range(5):
        if step == at:
            saved, sparse = sparse.dump(), SparseGradients(S2(), seed=3)
            sparse.load(read(saved))
        generator = torch.Generator().manual_seed(10 * step + group.rank)
        ids = torch.randint(0, 300, (1, 40), generator=generator)
        values = torch.randn(40, 4, generator=generator)
        grad = torch.sparse_coo_tensor(ids, values, (300, 4), check_invariants=True)
        found.append(sparse.mean("table", grad, group, step).to_dense())
    return torch.stack(found)


def test_a_resumed_run_gives_the_same_bits():
    for one, other in zip(
        simulate(3, lambda g: resumed(g, None)),
        simulate(3, lambda g: resumed(g, 3)),
        strict=True,
    ):
        assert torch.equal(one, other)


def refused(group, sparse):
    try:
        thinwire.attach(wrap("words"), "dense", sparse=sparse)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.processes
@pytest.mark.parametrize("sparse", [None, 5, "rows"])
def test_what_cannot_add_up_rows_is_refused(sparse):
    for message in pool(2).run(refused, sparse):
        assert "gather" in message


@pytest.mark.parametrize(
    "text", [None, "[1]", '{"table": 1}', '{"table": {"a": "x"}}', '{"a": {"b": 1.5}}']
)
def test_plans_that_cannot_be_read_are_refused(text):
    with pytest.raises(ConfigError, match="'sparse'"):
        read(text)


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
        (patch(8, 99), "increase"),
        (patch(11, 128), "increase"),
    ],
)
def test_bytes_from_a_peer_are_not_believed(change, message):
    def mean(group):
        sparse = SparseGradients(GatherRows())
        return sparse.mean("table", rows(group.rank, 5, 2), Lying(group, change), 0)

    with pytest.raises(WireError, match=message):
        simulate(2, mean)


def spoilt_after_rows(group, how):
    """The memories of rows before and after a step that is not to be applied."""
    model = DDP(Films())
    # With this scope rows are reduced before anything else is checked.
    state = thinwire.attach(model, "topk", density=0.5, sparse="s2", scope="model")

    def memories():
        (entries,) = [v for k, v in state.state_dict().items() if k.startswith("rank ")]
        return entries["sparse"]

    for step in range(4):
        before = memories()
        model.zero_grad()
        loss = model(pairs(group.rank, step, None)).square().sum()
        if step == 3 and how == "refused":
            state.density = 0.5 + 0.1 * group.rank
        if step == 3 and how == "bad" and group.rank == 1:
            loss = loss + model.module.out.bias.sum() * float("inf")
        refused = how == "refused" and step == 3
        with pytest.raises(AgreementError) if refused else nullcontext():
            loss.backward()
    return before, memories()


@pytest.mark.processes
@pytest.mark.parametrize("how", ["bad", "refused", "good"])
def test_a_step_that_is_not_applied_leaves_the_memories_of_rows(how):
    for before, after in pool(2).run(spoilt_after_rows, how):
        assert (before == after) == (how != "good")
