"""CharacterModel: a small transformer that predicts the next character of a text.

0.8 M parameters at its default size: large enough for its gradient to be worth
compressing, small enough to learn something in half a minute on a shared core.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.tools.demo.text import SYMBOLS


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model; `context` is how many characters it looks back at most."""

    width: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 32


class CharacterModel(nn.Module):
    """Symbols in, the logits of the symbol after each of them out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, shape.width)
        self.places = nn.Parameter(0.02 * torch.randn(shape.context, shape.width))
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, SYMBOLS)
        nn.init.normal_(self.symbols.weight, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.symbols(symbols) + self.places[: symbols.shape[1]]
        logits: Tensor = self.logits(self.norm(self.blocks(x)))
        return logits


class Block(nn.Module):
    """Causal attention and a two-layer network, each added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.mlp(x)
        return y


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    """The mean cross-entropy, in nats per character, of predicting each next one."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
