import math

import pytest
import torch
from experiments.tasks import task, wikitext
from experiments.tasks.language import LanguageData, Window
from experiments.tasks.lstm import WordLSTM
from experiments.tasks.transformer import WordTransformer
from torch import nn

from tests.experiments import tiny_data
from thinwire.errors import ConfigError
from thinwire.tools.demo.model import Shape

CPU = torch.device("cpu")


def words_of(length, vocabulary=1000):
    text = torch.arange(length) % vocabulary
    return wikitext.Words(text, text[:100], text[:60], vocabulary)


def counting(lanes=2, length=5, words=203):
    """A text of ascending numbers: what follows a word is the next number."""
    return LanguageData(words_of(words), CPU, Window(lanes, length))


@pytest.mark.parametrize("tokens", [False, True])
def test_both_names_of_the_files_hold_the_same_words(tmp_path, tokens):
    folder = tiny_data.wikitext(tmp_path, tokens=tokens)
    words = wikitext.load(folder, verify=False)
    assert words.vocabulary == 51  # and the end of a line
    assert [len(t) for t in (words.train, words.valid, words.test)] == [1000, 334, 223]
    assert words.train[9] == words.train[19] == words.train[-1] == words.valid[-1]
    assert (words.train[:9] != words.train[9]).all()


def test_words_are_numbered_by_first_use_and_lines_end(tmp_path):
    (tmp_path / "train.txt").write_text(" b a \n \n a \u2028 c\n")
    (tmp_path / "valid.txt").write_text("c d\n")
    (tmp_path / "test.txt").write_text("a\n")
    words = wikitext.load(tmp_path, verify=False)
    assert words.train.tolist() == [0, 1, 2, 2, 1, 3, 2]
    assert words.valid.tolist() == [3, 4, 2]
    assert words.vocabulary == 5


def test_rare_words_become_one_word(tmp_path):
    (tmp_path / "train.txt").write_text("a b a <unk> c\na b d\n")
    (tmp_path / "valid.txt").write_text("b e\n")
    (tmp_path / "test.txt").write_text("c <unk>\n")
    words = wikitext.load(tmp_path, verify=False, most=4)
    # <unk>, then a, b and the end of a line by how often they occur.
    assert words.vocabulary == 4
    assert words.train.tolist() == [1, 2, 1, 0, 0, 3, 1, 2, 0, 3]
    assert words.valid.tolist() == [2, 0, 3]
    assert words.test.tolist() == [0, 0, 3]
    enough = wikitext.load(tmp_path, verify=False, most=7)
    assert enough.train.tolist() == wikitext.load(tmp_path, verify=False).train.tolist()


def batch_of(data, rank=0, ranks=3, epoch=0, step=0, seed=0):
    return data.batch(rank=rank, ranks=ranks, epoch=epoch, step=step, seed=seed)


def test_windows_follow_one_another_on_every_lane():
    data = counting()
    assert data.steps(3) == 203 // 6 // 5
    for rank in range(3):
        last = None
        for step in range(data.steps(3)):
            words, following = batch_of(data, rank=rank, step=step)
            assert words.shape == following.shape == (2, 5)
            assert torch.equal(following, (words + 1) % 203)
            if last is not None:
                assert torch.equal(words[:, 0], last)
            last = following[:, -1]


def test_ranks_read_different_parts_and_cover_the_text():
    data = counting(words=180)
    seen = torch.cat(
        [
            batch_of(data, rank=rank, step=step)[0].flatten()
            for rank in range(3)
            for step in range(data.steps(3))
        ]
    )
    assert seen.sort().values.tolist() == list(range(180))


def test_batches_follow_from_their_arguments():
    one, other = counting(), counting()
    batch_of(one, epoch=4, seed=9)
    first = batch_of(one)[0]
    assert torch.equal(first, batch_of(other)[0])
    for change in ({"epoch": 1}, {"seed": 1}, {"rank": 1}, {"step": 1}):
        assert not torch.equal(first, batch_of(one, **change)[0])


def small_lstm(vocabulary):
    return WordLSTM(vocabulary, units=16)


def small_transformer(vocabulary):
    return WordTransformer(vocabulary, Shape(width=16, layers=2, heads=2, context=5))


@pytest.mark.parametrize("network", [small_lstm, small_transformer])
def test_models_learn_to_count(network):
    torch.manual_seed(0)
    data = LanguageData(words_of(1500, vocabulary=7), CPU, Window(8, 5))
    model, carry = network(7), None
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    assert data.evaluate(model) == pytest.approx(7, rel=0.3)
    for step in range(35):
        optimizer.zero_grad()
        loss, carry = data.loss(model, batch_of(data, ranks=1, step=step), carry)
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    assert data.evaluate(model) < 3
    assert data.final(model)["test perplexity"] < 3
    assert model.training


def test_the_state_is_carried_along_and_detached():
    torch.manual_seed(0)
    data, model = counting(), small_lstm(1000).eval()
    one, two = batch_of(data), batch_of(data, step=1)
    _, carry = data.loss(model, one, None)
    assert not any(part.requires_grad for layer in carry for part in layer)
    carried, _ = data.loss(model, two, carry)
    both = tuple(torch.cat(parts, dim=1) for parts in zip(one, two, strict=True))
    whole, _ = data.loss(model, both, None)
    first, _ = data.loss(model, one, None)
    assert whole.item() == pytest.approx((first + carried).item() / 2, rel=1e-5)
    assert carried.item() != data.loss(model, two, None)[0].item()


def test_the_perplexity_is_that_of_the_words():
    class Uniform(nn.Module):
        def forward(self, words, state):
            return torch.zeros(*words.shape, 1000), state

    assert counting().evaluate(Uniform()) == pytest.approx(1000)

    class Knows(nn.Module):
        def forward(self, words, state):
            likely = nn.functional.one_hot((words + 1) % 1000, 1000) * 50.0
            return likely, state

    assert counting().evaluate(Knows()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lstm-wikitext2", lambda v: 200 * v + v + 2 * (8 * 200 * 200 + 8 * 200)),
        (
            "transformer-wikitext2",
            lambda v: 256 * v + v + 64 * 256 + 512 + 4 * (12 * 256**2 + 9 * 256),
        ),
    ],
)
def test_tasks_have_their_size_and_one_table(tmp_path, name, parameters):
    some = task(name, tiny_data.wikitext(tmp_path, words=3000), verify=False)
    model = some.model()
    assert sum(p.numel() for p in model.parameters()) == parameters(51)
    assert model.logits.weight is model.words.weight
    data = some.data(CPU)
    loss, _ = data.loss(model, batch_of(data, ranks=1), None)
    loss.backward()
    assert abs(loss.item() - math.log(51)) < 1


def test_files_that_are_not_the_published_ones_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train.txt is not the file.*--unverified"):
        wikitext.load(tiny_data.wikitext(tmp_path))


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(ConfigError, match=r"no train.txt.*pytorch/examples"):
        wikitext.load(tmp_path)
    with pytest.raises(ConfigError, match="there is no nowhere"):
        wikitext.load(tmp_path / "nowhere")
    tiny_data.wikitext(tmp_path)
    (tmp_path / "valid.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigError, match="not a text in UTF-8"):
        wikitext.load(tmp_path, verify=False)


def test_texts_that_are_too_short():
    with pytest.raises(ConfigError, match="203 words is too short for 30 workers"):
        counting().steps(30)
    data = LanguageData(
        wikitext.Words(*(torch.arange(n) for n in (200, 5, 60)), 200), CPU, Window(2, 5)
    )
    with pytest.raises(ConfigError, match="5 words to evaluate on"):
        data.evaluate(small_lstm(200))
