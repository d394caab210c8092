"""A word-level LSTM: two layers, input and output words in one table.

With 10,000 words and 200 units: 2,653,200 parameters. Zaremba, Sutskever, Vinyals,
arXiv:1409.2329 (dropout between layers only); Press, Wolf, EACL 2017 (one table).
"""

from torch import Tensor, nn

_SPREAD = 0.1

State = tuple[tuple[Tensor, Tensor], ...]


class WordLSTM(nn.Module):
    """Words (batch, length) and a state in, logits and the next state out."""

    def __init__(
        self,
        vocabulary: int,
        *,
        units: int = 200,
        layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, units)
        self.drop = nn.Dropout(dropout)
        # One by one: cuDNN's dropout between layers has random numbers of its own,
        # which no seed of a step sets and no checkpoint keeps.
        self.layers = nn.ModuleList(
            nn.LSTM(units, units, batch_first=True) for _ in range(layers)
        )
        self.logits = nn.Linear(units, vocabulary)
        nn.init.uniform_(self.words.weight, -_SPREAD, _SPREAD)
        nn.init.zeros_(self.logits.bias)
        self.logits.weight = self.words.weight

    @property
    def _start(self) -> list[None]:
        return [None] * len(self.layers)

    def forward(self, words: Tensor, state: State | None) -> tuple[Tensor, State]:
        x, after = self.drop(self.words(words)), []
        for layer, before in zip(self.layers, state or self._start, strict=True):
            x, ended = layer(x, before)
            x = self.drop(x)
            after.append(ended)
        return self.logits(x), tuple(after)
