import gzip

import pytest
import torch
from experiments.tasks import ratings, task
from experiments.tasks.recommendation import RecommendationData
from torch import nn

from tests.experiments import tiny_data
from thinwire.errors import ConfigError

CPU = torch.device("cpu")
ROWS = tiny_data.rating_rows()


def text(separator, head=""):
    return head + "\n".join(separator.join(map(str, row)) for row in ROWS) + "\n"


FORMS = {
    "ratings.dat": text("::"),
    "ratings.csv": text(",", "userId,movieId,rating,timestamp\n"),
    "u.data": text("\t"),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_form_of_ratings_is_the_same_table(tmp_path, name, packed):
    file = tmp_path / (f"{name}.gz" if packed else name)
    content = FORMS[name].encode()
    file.write_bytes(gzip.compress(content) if packed else content)
    for path in (tmp_path, file):
        table = ratings.load(path)
        assert (table.user_count, table.item_count) == (25, 45)
        assert table.held_out_users.tolist() == list(range(25))
        assert table.held_out_items.tolist() == list(range(25))
        assert table.users.bincount().tolist() == [20] * 25
        assert table.items.bincount().sum() == 25 * 20


def test_who_and_what_has_few_ratings_is_left_out(tmp_path):
    few = [[99, row[1], 3, 1] for row in ROWS[:19]]  # a user of 19 ratings
    rare = [[user, 5, 3, 1] for user in (1, 2, 3, 4)]  # an item that four have rated
    content = "\n".join("::".join(map(str, row)) for row in [*few, *ROWS, *rare])
    (tmp_path / "ratings.dat").write_text(content)
    with_them = ratings.load(tmp_path)
    (tmp_path / "ratings.dat").write_text(FORMS["ratings.dat"])
    without = ratings.load(tmp_path)
    assert torch.equal(with_them.users, without.users)
    assert torch.equal(with_them.items, without.items)


@pytest.fixture
def table(tmp_path):
    (tmp_path / "ratings.dat").write_text(FORMS["ratings.dat"])
    return ratings.load(tmp_path)


@pytest.fixture
def data(table):
    return RecommendationData(table, CPU, batch=10)


def batch_of(data, rank=0, ranks=3, epoch=0, step=0, seed=0):
    return data.batch(rank=rank, ranks=ranks, epoch=epoch, step=step, seed=seed)


def epoch_of(data, **which):
    steps = data.steps(3)
    parts = [
        batch_of(data, rank=rank, step=step, **which)
        for step in range(steps)
        for rank in range(3)
    ]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def test_an_epoch_has_four_unrated_pairs_for_each_rated_one(data, table):
    rated_pairs = set(zip(table.users.tolist(), table.items.tolist(), strict=True))
    held_out = set(
        zip(table.held_out_users.tolist(), table.held_out_items.tolist(), strict=True)
    )
    users, items, rated = epoch_of(data)
    assert len(users) == 5 * 500 - 10  # what fills batches on three ranks
    positive = [
        pair
        for pair, is_rated in zip(
            zip(users.tolist(), items.tolist(), strict=True), rated, strict=True
        )
        if is_rated
    ]
    assert len(positive) == len(set(positive)) >= len(rated_pairs) - 10
    assert set(positive) <= rated_pairs
    negative = [
        (user, item)
        for user, item, is_rated in zip(
            users.tolist(), items.tolist(), rated.tolist(), strict=True
        )
        if not is_rated
    ]
    assert not set(negative) & (rated_pairs | held_out)
    assert users.bincount().max() == 100


def test_batches_follow_from_their_arguments(tmp_path, data):
    other = RecommendationData(ratings.load(tmp_path), CPU, batch=10)
    batch_of(other, epoch=3, seed=5)
    first = batch_of(data)
    assert all(map(torch.equal, first, batch_of(other)))
    for change in ({"epoch": 1}, {"seed": 1}, {"rank": 1}, {"step": 1}):
        assert not torch.equal(first[1], batch_of(data, **change)[1])


class Likes(nn.Module):
    """Scores an item by a function of user and item."""

    def __init__(self, score):
        super().__init__()
        self.score = score

    def forward(self, users, items):
        assert not self.training
        return self.score(users, items).float()


def test_the_hit_rate_ranks_the_held_out_item_among_unrated_ones(data):
    knows = Likes(lambda users, items: items == users)
    assert data.evaluate(knows) == 100.0
    assert knows.training
    assert data.evaluate(Likes(lambda users, items: -(items == users).int())) == 0.0
    # All equal: a tie is no hit.
    assert data.evaluate(Likes(lambda users, items: items * 0)) == 0.0
    # A fifth of the users get it right.
    fifth = Likes(lambda users, items: (items == users) & (users < 5))
    assert data.evaluate(fifth) == 20.0


def test_ncf_trains_sparse_tables(tmp_path):
    (tmp_path / "ratings.dat").write_text(FORMS["ratings.dat"])
    some = task("ncf-ratings", tmp_path, batch=250)
    torch.manual_seed(0)
    model, data = some.model(), some.data(CPU)
    assert model.users.weight.shape == (25, 32)
    assert model.items.weight.shape == (45, 32)
    optimizer = some.recipe.optimizer_of(model.parameters())
    losses = []
    for _ in range(12):
        for step in range(data.steps(1)):
            optimizer.zero_grad()
            loss, _ = data.loss(model, batch_of(data, ranks=1, step=step), None)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert model.users.weight.grad.is_sparse
    assert model.items.weight.grad.is_sparse
    assert abs(losses[0] - 0.69) < 0.1
    assert losses[-1] < 0.3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no ratings"),
        ("1::2\n", "not a file of ratings"),
        ("1::a::b::c\n", "not a file of ratings"),
        ("1::2::3::4\n", "no users of 20 ratings"),
    ],
)
def test_bad_files(tmp_path, content, message):
    (tmp_path / "ratings.dat").write_text(content)
    with pytest.raises(ConfigError, match=message):
        ratings.load(tmp_path)


def test_missing_files_say_where_to_get_them(tmp_path):
    with pytest.raises(ConfigError, match=r"no ratings.dat.*grouplens.org"):
        ratings.load(tmp_path)
