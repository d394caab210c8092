"""A gradient in, its average out: a guard and four statements, the last its user's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.channel import Channel
from thinwire.codecs import Codec
from thinwire.collectives import Collective, Room, Total
from thinwire.collectives import State as CollectiveState
from thinwire.cost import Cost
from thinwire.errors import ConfigError, WireError
from thinwire.feedback import Feedback, FeedbackState, Forget, Residual
from thinwire.groups import Group, Op
from thinwire.layout import DTYPES, Layout
from thinwire.reducers import guard
from thinwire.sparse import SparseVector

OnNonfinite = Literal["propagate", "zero", "unchecked"]


@dataclass(slots=True)
class State:
    """All that one unit of reduction remembers, and how many steps it took part in.

    `owes` is False where `x` is known to be zero on every rank.
    """

    layout: Layout
    memory: FeedbackState
    collective: CollectiveState
    step: int = 0
    room: Tensor | None = None
    undo: dict[str, int] = field(default_factory=dict)
    owes: bool = True
    deferred_errors: kernels.DeferredErrors | None = None

    def raise_deferred_errors(self, *, wait: bool = False) -> None:
        """Raise a `WireError` if a packet turned out to be wrong, as far as is known.

        In the memory of a device packets are judged later than they are used: the
        state is then torn. With `wait`, all that were used have been judged.
        """
        ranks = (
            []
            if self.deferred_errors is None
            else self.deferred_errors.found(wait=wait)
        )
        if ranks:
            raise WireError(
                f"from rank {', '.join(map(str, ranks))}: a packet that is not what "
                "the codec writes; give every rank the same codec, and suspect the "
                "network or the memory"
            )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Guard, accumulate, reduce, settle, write the mean.

    `on_nonfinite` says what every rank's result is when any rank's gradient has an
    infinity or a NaN: NaN (`"propagate"`, so that a GradScaler skips the step on all
    ranks alike), zeros (`"zero"`), or whatever comes of it (`"unchecked"`: no check).
    """

    collective: Collective
    codec: Codec | None = None
    feedback: Feedback = field(default_factory=Residual)
    on_nonfinite: OnNonfinite = "propagate"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.collective.coded and self.codec is None:
            raise ConfigError(f"{self.collective} sends lists: it needs a codec")
        if not self.collective.coded and self.codec is not None:
            raise ConfigError(
                f"{self.collective} reduces dense buffers and sends no lists: leave "
                f"the codec out (here {self.codec})"
            )
        if self.on_nonfinite not in ("propagate", "zero", "unchecked"):
            raise ConfigError(
                f"on_nonfinite is {self.on_nonfinite!r}: choose 'propagate', 'zero' or "
                "'unchecked'"
            )

    def init(self, layout: Layout, device: torch.device | str = "cpu") -> State:
        """The state of one unit of reduction."""
        memory = self.feedback.init(layout, torch.device(device))
        return State(layout, memory, self.collective.init(layout))

    def reduce_(
        self,
        grad: Sequence[Tensor],
        group: Group,
        state: State,
        *,
        scale: float = 1.0,
        per_name: bool = False,
    ) -> Total | None:
        """Replace a gradient by its mean over all ranks, in place.

        `grad` is made of flat pieces that follow one another in the order of the
        layout. Returns the mean as it was delivered, or None where the step was not
        finite: nothing has then been accumulated (or, where only the mean overflows
        half precision, nothing delivered). A mean that is applied is to be settled, one
        that is not to be taken back. `scale` is the loss scale the gradient carries.
        With `per_name`, names of the layout whose gradient is zero
        on every rank take no part and keep what they remember.
        """
        _check_pieces(grad, state.layout)
        state.raise_deferred_errors()
        segments = len(state.layout.names) if per_name else 1
        start = self._start(group, state, scale=scale, segments=segments)
        verdict = None
        if self.on_nonfinite != "unchecked" or per_name:
            bounds = _names_in_pieces(state.layout, _sizes(grad)) if per_name else None
            verdict = guard.agree(grad, bounds, group, self._claims(scale))
            if not verdict.finite and self.on_nonfinite != "unchecked":
                self.spoil_(grad)
                return None
        asleep = () if verdict is None or not per_name else _asleep(verdict, state)
        x = state.memory.x
        if state.deferred_errors is None and x.device.type == "cuda":
            state.deferred_errors = kernels.DeferredErrors(group.size, x.device)
        channel = Channel(
            group, self.codec, state.step, self.seed, state.deferred_errors
        )
        with _hidden(state.memory, asleep, scale):
            self.feedback.accumulate(grad, state.memory, scale=scale)
            total = self._deliver(channel, state, lambda: _room(grad, state))
        if state.deferred_errors is not None:
            state.deferred_errors.start_copy()
        whole = self.collective.direct(state.collective, state.step)
        state.owes = not whole or bool(asleep)
        mean = write_mean_(grad, total, group.size)
        self._finish(start, channel, state)
        if self.on_nonfinite != "unchecked" and _overflown(grad):
            self.take_back_(mean, state)
            self.spoil_(grad)
            return None
        return mean

    def direct(self, state: State) -> bool:
        """Whether plain DDP would do: all is delivered at once, and nothing is owed."""
        return (
            self.collective.direct(state.collective, state.step)
            # These do nothing to what is delivered whole; another may.
            and isinstance(self.feedback, Residual | Forget)
            and self.on_nonfinite != "zero"
            and not (state.owes and state.memory.saved)
        )

    def curious(self, state: State) -> bool:
        """Whether the next reduction must be timed."""
        return self.collective.curious(state.collective, state.step)

    def reduce_directly_(
        self, grad: Sequence[Tensor], group: Group, state: State
    ) -> Tensor:
        """Replace a gradient by its mean as plain DDP does, for a `direct` state.

        Nothing is checked or remembered, so that nothing can be taken back: for passes
        in which every unit is reduced like this.
        """
        _check_pieces(grad, state.layout)
        start = self._start(group, state)
        for piece in grad:
            piece.div_(group.size)
        group.all_reduce_(*((piece, Op.SUM) for piece in grad))
        self._finish(start, Channel(group, self.codec, state.step, self.seed), state)
        return grad[0] if len(grad) == 1 else torch.cat([p.float() for p in grad])

    def count(self, group: Group, state: State) -> None:
        """Take note of a reduction that someone else has made for a `direct` state."""
        channel = Channel(group, self.codec, state.step, self.seed)
        self.collective.learn(0.0, channel, state.collective)
        state.step += 1

    def settle(self, mean: Total, state: State) -> None:
        """Let the feedback take note of a delivery that every rank will apply."""
        self.feedback.settle(mean, state.memory)

    def take_back_(self, mean: Total, state: State) -> None:
        """Undo a delivery that no rank will apply: every rank remembers the mean."""
        state.collective.saved.clear()
        state.collective.saved.update(state.undo)
        x = state.memory.x.whole()
        if isinstance(mean, SparseVector):
            kernels.add_at_(x, mean.indices, mean.values)
        else:
            x.add_(mean)
        state.owes = True
        state.step -= 1

    def spoil_(self, grad: Sequence[Tensor]) -> None:
        """Write the result of a step that was not finite."""
        for piece in grad:
            piece.fill_(0.0 if self.on_nonfinite == "zero" else float("nan"))

    def cost(self, size: int, ranks: int) -> Cost:
        """The card of the collective and of the guard."""
        total = self.collective.cost(size, ranks, self.codec)
        if self.on_nonfinite == "unchecked":
            return total
        return total + guard.cost(1, len(self._claims(1.0)), ranks)

    def _deliver(self, channel: Channel, state: State, out: Room) -> Total:
        x, state.undo = state.memory.x, dict(state.collective.saved)
        return self.collective.all_reduce_(x, channel, state.collective, out)

    def _start(
        self, group: Group, state: State, *, scale: float = 1.0, segments: int = 1
    ) -> float:
        """When the reduction starts; if that matters, when all ranks are there."""
        if self.curious(state):
            # The guard's own message: a rank whose density differs, and who is not
            # curious, is at its guard already, and both find out there.
            guard.compare(torch.zeros(segments), group, self._claims(scale))
        return group.now()

    def _finish(self, start: float, channel: Channel, state: State) -> None:
        if self.curious(state) and state.memory.x.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        seconds = channel.group.now() - start
        self.collective.learn(seconds, channel, state.collective)
        state.step += 1

    def _claims(self, scale: float) -> dict[str, float]:
        density = self.collective.density
        return {"the loss scale": scale} | (
            {} if density is None else {"density": density}
        )


def write_mean_(grad: Sequence[Tensor], total: Total, ranks: int) -> Total:
    """Divide a total by the number of ranks and write it into zeroed pieces."""
    if isinstance(total, Tensor):
        total.div_(ranks)
        for piece, part in zip(
            grad, torch.split(total, list(_sizes(grad))), strict=True
        ):
            if piece.data_ptr() != part.data_ptr():
                piece.copy_(part)
        return total
    mean = kernels.write_mean_(grad, total.indices, total.values, ranks=ranks)
    return SparseVector(total.indices, mean, total.size)


def _sizes(grad: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(piece.numel() for piece in grad)


def _check_pieces(grad: Sequence[Tensor], layout: Layout) -> None:
    for piece in grad:
        if piece.dtype not in DTYPES:
            raise ConfigError(
                f"a gradient in {piece.dtype}: thinwire reduces float32, bfloat16 and "
                "float16"
            )
    size = sum(_sizes(grad))
    if size != layout.size:
        raise ConfigError(
            f"a gradient of {size} elements for a layout of {layout.size}"
        )


@lru_cache(maxsize=1024)
def _names_in_pieces(layout: Layout, sizes: tuple[int, ...]) -> list[Tensor]:
    """The edges of a layout's names in each piece, every name in exactly one."""
    found: list[list[int]] = [[0] for _ in sizes]
    piece, start = 0, 0
    for low, high in pairwise(layout.offsets):
        # An empty name goes with the piece before it.
        while high > start + sizes[piece]:
            start += sizes[piece]
            piece += 1
        if low < start:
            raise ConfigError("a piece of a gradient ends in the middle of a name")
        found[piece].append(high - start)
    return [torch.tensor(edges) for edges in found]


def _asleep(verdict: guard.Verdict, state: State) -> list[tuple[int, int]]:
    """The ranges of `x` whose gradient is zero on every rank."""
    offsets = state.layout.offsets
    return [
        (offsets[i], offsets[i + 1]) for i, used in enumerate(verdict.used) if not used
    ]


def _overflown(grad: Sequence[Tensor]) -> bool:
    """Whether a mean that is finite in float32 is not in half precision.

    Every rank has the same mean, so every rank sees it without asking the others.
    """
    halves = [piece for piece in grad if piece.dtype == torch.float16]
    return not all(bool(kernels.fetch(half.isfinite().all())) for half in halves)


def _room(grad: Sequence[Tensor], state: State) -> Tensor:
    """Room for a dense total: the gradient's own memory where it will do."""
    if len(grad) == 1 and grad[0].dtype == torch.float32 and grad[0].is_contiguous():
        return grad[0]
    if state.room is None:
        state.room = torch.empty(state.memory.x.size, device=state.memory.x.device)
    return state.room


@contextmanager
def _hidden(
    memory: FeedbackState, ranges: Sequence[tuple[int, int]], scale: float
) -> Iterator[None]:
    """Take ranges out of what is remembered for a step to the loss scale `scale`.

    Zeros that a gradient of zeros is added to are neither selected nor changed.
    """
    keep = scale / memory.scale
    hidden = [(v, slice(*each)) for v in memory.saved.values() for each in ranges]
    stash = [vector.whole()[part].clone() for vector, part in hidden]
    for vector, part in hidden:
        vector.whole()[part] = 0.0
    try:
        yield
    finally:
        for (vector, part), kept in zip(hidden, stash, strict=True):
            vector.whole()[part] += kept.mul_(keep)
