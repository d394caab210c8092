"""Neural collaborative filtering: how much a user would like an item.

He, Liao, Zhang, Nie, Hu, Chua, WWW 2017: the product of two embeddings beside a network
on two others, joined by one linear layer. A row of a table holds both parts.
"""

import torch
from torch import Tensor, nn

_SPREAD = 0.05


class NCF(nn.Module):
    """Users and items in, logits out; gradients of the two tables are sparse."""

    def __init__(self, users: int, items: int, *, factors: int = 16) -> None:
        super().__init__()
        self.factors = factors
        self.users = nn.Embedding(users, 2 * factors, sparse=True)
        self.items = nn.Embedding(items, 2 * factors, sparse=True)
        self.network = nn.Sequential(
            nn.Linear(2 * factors, 2 * factors),
            nn.ReLU(),
            nn.Linear(2 * factors, factors),
            nn.ReLU(),
            nn.Linear(factors, factors // 2),
            nn.ReLU(),
        )
        self.logit = nn.Linear(factors + factors // 2, 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=_SPREAD)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        user, for_network = self.users(users).split(self.factors, dim=-1)
        item, item_for_network = self.items(items).split(self.factors, dim=-1)
        joined = self.network(torch.cat([for_network, item_for_network], dim=-1))
        logits: Tensor = self.logit(torch.cat([user * item, joined], dim=-1))
        return logits.squeeze(-1)
