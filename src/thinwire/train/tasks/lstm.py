"""A word-level LSTM: two layers, input and output words in one table.

With 33,278 words and 400 units: 15,910,878 parameters. Zaremba, Sutskever, Vinyals,
arXiv:1409.2329 (dropout between layers only); Press, Wolf, EACL 2017 (one table).
"""

from torch import Tensor, nn

_SPREAD = 0.1

State = tuple[Tensor, Tensor]


class WordLSTM(nn.Module):
    """Words (batch, length) and a state in, logits and the next state out."""

    def __init__(
        self,
        vocabulary: int,
        *,
        units: int = 400,
        layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, units)
        self.drop = nn.Dropout(dropout)
        self.lstm = nn.LSTM(units, units, layers, dropout=dropout, batch_first=True)
        self.logits = nn.Linear(units, vocabulary)
        nn.init.uniform_(self.words.weight, -_SPREAD, _SPREAD)
        nn.init.zeros_(self.logits.bias)
        self.logits.weight = self.words.weight

    def forward(self, words: Tensor, state: State | None) -> tuple[Tensor, State]:
        seen, state = self.lstm(self.drop(self.words(words)), state)
        return self.logits(self.drop(seen)), state
