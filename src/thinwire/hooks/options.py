"""The keyword options of `attach` that every method, or some methods, take."""

from collections.abc import Sequence
from typing import TypedDict

from thinwire.catalog import WarmupSteps
from thinwire.codecs import Codec
from thinwire.collectives import Collective, RowCollective
from thinwire.cost import Link
from thinwire.feedback import Feedback
from thinwire.reducers import OnNonfinite


class MethodOptions(TypedDict, total=False):
    """Options of single methods: the cards in docs/reference say which take which."""

    variant: str
    teams: int | str
    gather: str
    partition: str
    scatter: str
    link: Link | None
    rows: int
    columns: int | str | None
    candidates: int | str | Collective | Sequence[str | Collective]
    rounds: int
    sum: str
    recover: str
    block: int
    estimate: str
    index: str
    value: str
    fpr: float | None
    granularity: str
    width: int
    decode: str
    visit: int
    recheck: int


class Options(MethodOptions, total=False):
    """Options of all methods, and those of single methods."""

    codec: str | Codec | None
    feedback: str | Feedback
    warmup: WarmupSteps
    min_size: int
    on_nonfinite: OnNonfinite
    seed: int
    sparse: str | RowCollective
    clip: float | None
    warn: bool
