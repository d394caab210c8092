"""A small vision transformer: patches of 4, a mean over all of them at the end.

Dosovitskiy et al., ICLR 2021, without the token of the class. At width 192 with eight
layers: 3,582,922 parameters on images of 32 x 32 with three channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.tasks.images import CLASSES
from experiments.tasks.precision import half

_SPREAD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTShape:
    """The size of a vision transformer."""

    side: int = 32
    patch: int = 4
    width: int = 192
    layers: int = 8
    heads: int = 3


class ViT(nn.Module):
    """Images in, logits out; in bfloat16 where that is fast."""

    def __init__(self, channels: int = 3, shape: ViTShape = ViTShape()) -> None:  # noqa: B008 - it is frozen
        super().__init__()
        self.patches = nn.Conv2d(channels, shape.width, shape.patch, shape.patch)
        count = (shape.side // shape.patch) ** 2
        self.places = nn.Parameter(_SPREAD * torch.randn(count, shape.width))
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        with half(images.device):
            x = self.patches(images).flatten(2).transpose(1, 2) + self.places
            logits: Tensor = self.logits(self.norm(self.blocks(x)).mean(1))
        return logits.float()


class Block(nn.Module):
    """Attention and a two-layer network, each added to its input."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.mlp(x)
        return y
