import math

import pytest
import torch

from thinwire.tools.demo.loop import train_step
from thinwire.tools.demo.model import CharacterModel, Shape, loss_of
from thinwire.tools.demo.text import SYMBOLS, Corpus, standard_library, windows

SMALL = Shape(width=32, layers=2, heads=2, context=16)


def test_it_has_the_size_that_is_promised():
    parameters = sum(p.numel() for p in CharacterModel(Shape()).parameters())
    assert 800_000 <= parameters < 850_000


def test_it_does_not_see_the_future():
    torch.manual_seed(0)
    model = CharacterModel(SMALL)
    one = torch.randint(SYMBOLS, (2, 16))
    other = one.clone()
    other[:, 9:] = 0
    assert torch.equal(model(one)[:, :9], model(other)[:, :9])


@pytest.fixture
def one_thread():
    """Threads that wait for one another take seconds a step on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_it_starts_ignorant_and_learns():
    torch.manual_seed(0)
    corpus = Corpus.of(standard_library())
    model = CharacterModel(SMALL)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = [
        train_step(model, optimizer, windows(corpus.train, 16, 17, seed=step))
        for step in range(40)
    ]
    assert abs(losses[0] - math.log(SYMBOLS)) < 0.5
    assert sum(losses[-5:]) / 5 < losses[0] - 0.8
    with torch.no_grad():
        held_out = loss_of(model, windows(corpus.held_out, 64, 17, seed=0)).item()
    assert held_out < losses[0] - 0.5
