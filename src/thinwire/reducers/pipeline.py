"""Pipeline: replaces a gradient by its mean over all ranks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import torch
from torch import Tensor

from thinwire import kernels
from thinwire.channel import Channel
from thinwire.choosers import Choice, choose
from thinwire.codecs import Codec
from thinwire.collectives import Collective, CollectiveMemory, Dense, Total
from thinwire.collectives.collective import check_choice
from thinwire.cost import Cost
from thinwire.errors import AgreementError, ConfigError, WireError
from thinwire.feedback import Feedback, FeedbackState, Forget, Residual
from thinwire.groups import Group, Op
from thinwire.layout import DTYPES, Layout
from thinwire.reducers import guard
from thinwire.reducers.mean import write_mean_
from thinwire.reducers.names import hidden, names_in_pieces, ranges_of, set_aside

OnNonfinite = Literal["propagate", "zero", "unchecked"]


@dataclass(slots=True)
class UnitState:
    """The state of one unit between its reductions.

    `memory` is that of the feedback. `has_residual` is False if `x` is zero on every
    rank. Where `undoable` is set, `Pipeline.undo_` can undo the next reduction: the
    accumulating pass then copies the residual. `before` is what it returns to, besides
    the vectors. `unused` are names that this rank did not use: the gradient to reduce
    has an old one there. If no rank used them, it keeps that: they are `untouched`.
    """

    layout: Layout
    memory: FeedbackState
    collective_memory: CollectiveMemory
    step: int = 0
    buffer: Tensor | None = None
    has_residual: bool = True
    undoable: bool = False
    before: tuple[Mapping[str, int], bool] = ({}, True)
    unused: Collection[str] = ()
    untouched: Collection[str] = ()
    deferred_errors: kernels.DeferredErrors | None = None

    def begin(self, *, undoable: bool) -> None:
        """Prepare for a reduction, which may be undone if `undoable`."""
        self.before = self.collective_memory.to_dict(), self.has_residual
        self.memory.begin(undoable=undoable)

    def raise_deferred_errors(self, *, wait: bool = False) -> None:
        """Raise a `WireError` if a packet has been found to be wrong.

        Packets in device memory are checked after they are used, so a wrong one leaves
        the state inconsistent. `wait` waits until all used packets are checked.
        """
        errors = self.deferred_errors
        ranks = [] if errors is None else errors.found(wait=wait)
        if ranks:
            raise WireError(
                f"from rank {', '.join(map(str, ranks))}: a packet that is not what "
                "the codec writes; give every rank the same codec, and suspect the "
                "network or the memory"
            )


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Guard, accumulate, reduce, write the mean; the caller then calls `settle`.

    `on_nonfinite` says what every rank gets if any rank's gradient has an infinity or a
    NaN: NaN (`"propagate"`, so that a GradScaler skips the step on all ranks), zeros
    (`"zero"`), or the result of the arithmetic (`"unchecked"`, without a guard).
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
        check_choice("on_nonfinite", self.on_nonfinite, OnNonfinite)

    def init(self, layout: Layout, device: torch.device | str = "cpu") -> UnitState:
        """The state of one unit of reduction before its first step."""
        memory = self.feedback.init(layout, torch.device(device))
        return UnitState(layout, memory, self.collective.init(layout))

    def reduce_(
        self,
        grad: Sequence[Tensor],
        group: Group,
        state: UnitState,
        *,
        scale: float = 1.0,
        per_name: bool = False,
    ) -> Total | None:
        """Replace a gradient by its mean over all ranks, in place.

        `grad` consists of flat pieces in the order of the layout; `scale` is its loss
        scale. Returns the mean, which the caller passes to `settle` if the optimizer
        will apply it, and if not, calls `undo_`, for which the state must have been
        `undoable`. Returns None if the step is not finite; then the state is what it
        was. With `per_name`, names whose gradient is zero on every rank keep their
        residual. So do names that are `unused` on every rank, and their gradient too.
        Where a model is sharded, the ranks of all shards must agree on what is finite
        and used: they are `group.everyone`.
        """
        _check_pieces(grad, state.layout)
        state.raise_deferred_errors()
        choice = self._choose(state)
        segments = len(state.layout.names) if per_name else 1
        start = self._start(choice, group, scale=scale, segments=segments)
        result = None
        if self.on_nonfinite != "unchecked" or per_name:
            bounds = names_in_pieces(state.layout, _sizes(grad)) if per_name else None
            result = guard.agree(
                grad,
                bounds,
                group.everyone,
                self._settings(scale),
                unused=_numbers(state),
            )
            if not result.finite and self.on_nonfinite != "unchecked":
                self.fill_nonfinite_(grad)
                return None
        resting = _resting(result, state) if per_name and result is not None else ()
        state.untouched = [name for name in resting if name in state.unused]
        channel = self._channel(group, state)
        # Whether a mean overflows half precision is known only when it is written.
        halves = self.on_nonfinite != "unchecked" and any(map(_is_half, grad))
        state.begin(undoable=state.undoable or halves)
        with (
            _refused_alike(group),
            hidden(state.memory, ranges_of(state.layout, resting), scale),
            set_aside(grad, ranges_of(state.layout, state.untouched)),
        ):
            self.feedback.accumulate(grad, state.memory, scale=scale)
            total = choice.collective.all_reduce_(
                state.memory.x, channel, choice.memory, lambda: _buffer(grad, state)
            )
            mean = write_mean_(grad, total, group.size)
        if state.deferred_errors is not None:
            state.deferred_errors.start_copy()
        state.has_residual = not choice.plain or bool(resting)
        self._finish(choice, start, channel, state)
        if halves and _overflown(grad, group):
            self.undo_(state)
            self.fill_nonfinite_(grad)
            return None
        return mean

    def plain(self, state: UnitState | None = None) -> bool:
        """Whether DDP's own all-reduce may replace the next reduction of a unit.

        That is so if the collective is `Dense`, no residual is left, and the feedback
        adds nothing. Without a state, the unit is taken to be before its first step.
        """
        if self.on_nonfinite == "zero" or not isinstance(
            self.feedback, Residual | Forget
        ):
            return False
        if state is None:
            return isinstance(self.collective, Dense)
        residual = state.has_residual and bool(state.memory.saved)
        return self._choose(state).plain and not residual

    def timed(self, state: UnitState) -> bool:
        """Whether the next reduction is timed: units are then reduced one by one."""
        return self._choose(state).timed

    def reduce_plainly_(
        self, grad: Sequence[Tensor], group: Group, state: UnitState
    ) -> Tensor:
        """Replace a gradient by its mean as DDP does, to the bit, if `plain(state)`.

        Nothing is checked or accumulated, so it cannot be undone.
        """
        _check_pieces(grad, state.layout)
        choice = self._choose(state)
        start = self._start(choice, group)
        for piece in grad:
            piece.div_(group.size)
        group.all_reduce_(*((piece, Op.SUM) for piece in grad))
        channel = Channel(group, self.codec, state.step, self.seed)
        self._finish(choice, start, channel, state)
        return grad[0] if len(grad) == 1 else torch.cat([p.float() for p in grad])

    def count_plain(self, group: Group, state: UnitState) -> None:
        """Count a step in which DDP's own all-reduce replaced the reduction."""
        channel = Channel(group, self.codec, state.step, self.seed)
        self._finish(self._choose(state), group.now(), channel, state)

    def settle(self, mean: Total, state: UnitState) -> None:
        """Pass a mean that every rank will apply to the feedback."""
        self.feedback.settle(mean, state.memory)

    def undo_(self, state: UnitState) -> None:
        """Undo the last reduction, which no rank will apply: it leaves no trace."""
        counters, state.has_residual = state.before
        state.collective_memory.load_dict(counters)
        state.memory.undo_()
        state.step -= 1

    def fill_nonfinite_(self, grad: Sequence[Tensor]) -> None:
        """Write the result of a step that is not finite: NaN, or zeros."""
        for piece in grad:
            piece.fill_(0.0 if self.on_nonfinite == "zero" else float("nan"))

    def cost(self, size: int, ranks: int) -> Cost:
        """The cost of the collective and of the guard."""
        total = self.collective.cost(size, ranks, self.codec)
        if self.on_nonfinite == "unchecked":
            return total
        return total + guard.cost(1, len(self._settings(1.0)), ranks)

    def _choose(self, state: UnitState) -> Choice:
        size = state.layout.size
        return choose(self.collective, state.collective_memory, size, state.step)

    def _channel(self, group: Group, state: UnitState) -> Channel:
        x = state.memory.x
        if state.deferred_errors is None and x.device.type == "cuda":
            state.deferred_errors = kernels.DeferredErrors(group.size, x.device)
        return Channel(
            *(group, self.codec, state.step, self.seed, state.deferred_errors),
            finite=self.on_nonfinite != "unchecked",
        )

    def _start(
        self, choice: Choice, group: Group, *, scale: float = 1.0, segments: int = 1
    ) -> float:
        """The time at which the reduction starts; if timed, on all ranks together."""
        if choice.timed:
            # The same message as the guard's: if a rank has another density and does
            # not time this step, its guard receives it and both find the difference.
            guard.compare(torch.zeros(segments), group, self._settings(scale))
        return group.now()

    def _finish(
        self, choice: Choice, start: float, channel: Channel, state: UnitState
    ) -> None:
        if choice.timed and state.memory.x.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        if choice.finish is not None:
            choice.finish(channel.group.now() - start, channel)
        state.step += 1

    def _settings(self, scale: float) -> dict[str, float]:
        density = self.collective.density
        return {"the loss scale": scale} | (
            {} if density is None else {"density": density}
        )


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


def _numbers(state: UnitState) -> list[int]:
    """The numbers of names that this rank did not use."""
    names = state.layout.names if state.unused else ()
    return [number for number, name in enumerate(names) if name in state.unused]


def _resting(result: guard.GuardResult, state: UnitState) -> list[str]:
    """The names without a gradient on every rank."""
    names = zip(state.layout.names, result.used, strict=True)
    return [name for name, used in names if not used]


def _overflown(grad: Sequence[Tensor], group: Group) -> bool:
    """Whether a mean that is finite in float32 is not in half precision.

    The mean is the same on all ranks of the group, so they agree without communication,
    but for those that have another shard.
    """
    halves = filter(_is_half, grad)
    found = not all(bool(kernels.fetch(half.isfinite().all())) for half in halves)
    if group.everyone is group:
        return found
    peak = torch.tensor([inf if found else 0.0])
    return not guard.compare(peak, group.everyone, {}).finite


def _is_half(piece: Tensor) -> bool:
    return piece.dtype == torch.float16


def _buffer(grad: Sequence[Tensor], state: UnitState) -> Tensor:
    """A buffer for a dense total: the gradient's own memory if possible."""
    if len(grad) == 1 and grad[0].dtype == torch.float32 and grad[0].is_contiguous():
        return grad[0]
    if state.buffer is None:
        state.buffer = torch.empty(state.memory.x.size, device=state.memory.x.device)
    return state.buffer


@contextmanager
def _refused_alike(group: Group) -> Iterator[None]:
    """Keep the group usable if a reduction ends in an error that all ranks raise."""
    try:
        yield
    except (AgreementError, ConfigError):
        group.refuse_receives()
        raise
