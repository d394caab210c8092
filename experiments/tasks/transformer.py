"""A small word-level transformer: the demo's blocks, input and output in one table.

With 33,278 words, width 256 and four blocks: 11,724,286 parameters.
"""

import torch
from torch import Tensor, nn

from thinwire.tools.demo.model import Block, Shape

_SPREAD = 0.02


class WordTransformer(nn.Module):
    """Words (batch, length) in, logits out; it has no state between windows."""

    def __init__(self, vocabulary: int, shape: Shape, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, shape.width)
        self.places = nn.Parameter(_SPREAD * torch.randn(shape.context, shape.width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, vocabulary)
        nn.init.normal_(self.words.weight, std=_SPREAD)
        nn.init.zeros_(self.logits.bias)
        self.logits.weight = self.words.weight

    def forward(self, words: Tensor, state: None) -> tuple[Tensor, None]:
        x = self.drop(self.words(words) + self.places[: words.shape[1]])
        return self.logits(self.drop(self.norm(self.blocks(x)))), state
