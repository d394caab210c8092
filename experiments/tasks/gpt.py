"""A GPT: blocks of causal attention and a GELU network, with learned positions.

At width 384, six layers and a context of 256 bytes: 10,942,464 parameters. With
`bias=False` and `tied=True` it is nanoGPT's.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_SPREAD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTShape:
    """The size of a GPT, and what it leaves out.

    `bias` is that of every linear layer and LayerNorm; `tied`: input and output share
    one table. The output of a table of its own has no bias.
    """

    symbols: int = 256
    context: int = 256
    width: int = 384
    layers: int = 6
    heads: int = 6
    dropout: float = 0.0
    bias: bool = True
    tied: bool = False


class GPT(nn.Module):
    """Symbols (batch, length) in, logits out."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.symbols = nn.Embedding(shape.symbols, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.drop = nn.Dropout(shape.dropout)
        blocks = [Block(shape) for _ in range(shape.layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(shape.width, bias=shape.bias)
        self.logits = nn.Linear(shape.width, shape.symbols, bias=False)
        if shape.tied:
            self.logits.weight = self.symbols.weight
        self.apply(_spread)
        for block in blocks:
            for last in (block.out, block.down):
                deviation = _SPREAD / math.sqrt(2 * shape.layers)
                nn.init.normal_(last.weight, std=deviation)

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.drop(self.symbols(symbols) + self.places.weight[: symbols.shape[1]])
        logits: Tensor = self.logits(self.norm(self.blocks(x)))
        return logits


class Block(nn.Module):
    """Causal attention and a two-layer network, each added to its input."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        width, bias = shape.width, shape.bias
        self.heads, self.dropout = shape.heads, shape.dropout
        self.before = nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.between = nn.LayerNorm(width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.out(self._attended(self.before(x))))
        hidden = functional.gelu(self.up(self.between(x)))
        y: Tensor = x + self.drop(self.down(hidden))
        return y

    def _attended(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return attended.transpose(1, 2).reshape(batch, length, width)


def _spread(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_SPREAD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    """The mean cross-entropy, in nats a symbol, of predicting each next one."""
    logits: Tensor = model(windows[:, :-1])
    following = windows[:, 1:].flatten()
    return functional.cross_entropy(logits.flatten(0, 1).float(), following)


def count(shape: GPTShape) -> int:
    """How many parameters a GPT of this shape has.

    >>> count(GPTShape())
    10942464
    """
    with torch.device("meta"):
        return sum(p.numel() for p in GPT(shape).parameters())
