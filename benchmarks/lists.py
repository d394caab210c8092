"""The lists that codecs are measured on: supports, laws of values, a real gradient."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from thinwire import kernels
from thinwire.kernels import index_dtype
from thinwire.sparse import keep_count
from thinwire.tools.demo.loop import Recipe, train_step
from thinwire.tools.demo.model import CharacterModel, loss_of
from thinwire.tools.demo.text import Corpus, standard_library, windows

BLOCK = 4096
SHAPE = 0.5
TRAINED = 50  # steps that the model has made before its gradient is recorded


def uniform(size: int, density: float) -> Tensor:
    """Random indices, all equally likely."""
    generator = torch.Generator().manual_seed(1)
    lots = torch.rand(size, generator=generator)
    return kernels.select(lots, keep_count(size, density))[0]


def clustered(size: int, density: float) -> Tensor:
    """Each block of 4096 elements has a density of its own, from a gamma law."""
    generator = np.random.default_rng(2)
    own = generator.gamma(SHAPE, density / SHAPE, -(-size // BLOCK))
    chosen = generator.random(size, np.float32) < np.repeat(own, BLOCK)[:size]
    return torch.from_numpy(np.flatnonzero(chosen)).to(index_dtype(size))


def _gaussian(size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator)


def _laplace(size: int, generator: torch.Generator) -> Tensor:
    signs = torch.rand(size, generator=generator).sub_(0.5).sign_()
    return torch.empty(size).exponential_(generator=generator).mul_(signs)


def _student(size: int, generator: torch.Generator) -> Tensor:
    """Three degrees of freedom: a normal variable over the length of three others."""
    squares = torch.zeros(size)
    for _ in range(3):
        squares += torch.randn(size, generator=generator).square_()
    return torch.randn(size, generator=generator) / (squares / 3).sqrt_()


LAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "Gaussian": _gaussian,
    "Laplace": _laplace,
    "Student-t(3)": _student,
}


def sample(law: str, size: int) -> Tensor:
    """A dense vector whose elements all follow one law."""
    return LAWS[law](size, torch.Generator().manual_seed(3))


def recorded() -> Tensor:
    """A gradient of the demo's model, after some training."""
    recipe = Recipe()
    corpus = Corpus.of(standard_library())
    torch.manual_seed(recipe.seed)
    model = CharacterModel(recipe.shape)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
    length = recipe.shape.context + 1
    batches = (
        windows(corpus.train, recipe.batch, length, seed=step)
        for step in range(TRAINED + 1)
    )
    for _ in range(TRAINED):
        train_step(model, optimizer, next(batches))
    found = torch.autograd.grad(loss_of(model, next(batches)), parameters)
    return torch.cat([gradient.view(-1) for gradient in found])
