"""What must hold after a life, from what its ranks have said."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from signal import SIGABRT, SIGKILL
from typing import Any

import numpy as np

from chaos.plan import Fault, Plan

# Beyond the timeout of a call: to find who is missing, on a busy machine.
LATEST = 20.0
# Of an element's own sum, and of the largest one: a million times less than an entry.
OWN, LARGEST = 2e-5, 2e-6


@dataclass
class Told:
    """What one rank has said in one life, and how its process ended."""

    messages: list[tuple[str, Any]] = field(default_factory=list)
    code: int | None = None

    def all(self, kind: str) -> list[Any]:
        """The messages of a kind."""
        return [what for name, what in self.messages if name == kind]

    @property
    def error(self) -> Mapping[str, Any] | None:
        """The typed error that ended it."""
        errors = self.all("error")
        return errors[0] if errors else None

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to come from its training."""
        return any(kind in ("over", "error", "crash") for kind, _ in self.messages)

    @property
    def steps(self) -> dict[int, str]:
        """The weights after each step."""
        return dict(self.all("step"))


Ranks = Sequence[Told]

# These may hit what is not used any more, or a bit that nobody reads.
HARMLESS = ("closed socket", "flipped stream")


def problems(plan: Plan, life: int, ranks: Ranks) -> Iterator[str]:
    """All that is wrong with a life by itself."""
    for number, told in enumerate(ranks):
        yield from (f"rank {number}, step {s}: {e}" for s, e in told.all("crash"))
        yield from (f"rank {number}, step {s}: {w}" for s, w in told.all("wrong"))
        for leaked in told.all("over"):
            if leaked > 0:
                yield f"rank {number} has {leaked} more files open than before"
    yield from _endings(plan.endings[life], plan, ranks)
    yield from _weights(ranks)
    yield from _sums(plan, ranks)


def flips(ranks: Ranks) -> list[str]:
    """What a bit that was flipped in a stream has led to."""
    found = {told.error["type"] for told in ranks if told.error is not None}
    found |= {"abort in Gloo" for told in ranks if told.code == -SIGABRT}
    return [f"flipped stream ({' + '.join(sorted(found)) or 'no effect'})"]


def _endings(ending: Fault | None, plan: Plan, ranks: Ranks) -> Iterator[str]:
    """Who may have ended how, and which errors must name whom."""
    hurt = any(told.code == -SIGKILL or _was_hurt(told, ending) for told in ranks)
    kind = ending.kind if ending is not None else ""
    for number, told in enumerate(ranks):
        victim = ending is not None and number in ending.ranks
        killed = victim and kind.startswith("kill")
        allowed = {0, -SIGKILL} if killed else {0}
        if kind == "flipped stream":
            allowed |= {-SIGABRT}  # a wrong header of Gloo's own
        if told.code not in allowed:
            yield f"rank {number} ended with {told.code}"
        if told.error is None and told.code == 0 and hurt and kind not in HARMLESS:
            yield f"rank {number} went on without noticing: {kind}"
        if told.error is not None and not killed:
            faults = _error(told.error, ending if hurt else None, plan, victim=victim)
            yield from (f"rank {number}: {fault}" for fault in faults)


def _was_hurt(told: Told, ending: Fault | None) -> bool:
    return ending is not None and ending in told.all("hurt")


def _error(
    error: Mapping[str, Any], ending: Fault | None, plan: Plan, *, victim: bool
) -> Iterator[str]:
    shown = f"{error['type']} in step {error['step']}: {error['message']}"
    if ending is None or error["step"] < ending.step:
        yield f"an error without a reason: {shown}"
        return
    if error["seconds"] > plan.timeout + LATEST:
        yield f"an error after {error['seconds']:.1f} s: {shown}"
    # An AgreementError says that nothing was done, which is so on this rank. A save
    # that fails changes nothing.
    harmless = error["saving"] or error["type"] == "AgreementError"
    if not error["refused"] and not harmless:
        yield f"the state can still be saved after {shown}"
    if ending.kind == "flipped bit" and victim and error["type"] != "WireError":
        yield f"a damaged packet, and then {shown}"
    named = ending.kind.startswith(("kill", "long"))
    if named and not victim and not _names(error, ending):
        yield f"an error that does not name {ending.ranks}: {shown}"


def _names(error: Mapping[str, Any], ending: Fault) -> bool:
    ranks = set(error["ranks"] or ())
    return error["type"] == "PeerError" and bool(ranks) and ranks <= set(ending.ranks)


def _weights(ranks: Ranks) -> Iterator[str]:
    """All ranks have the same weights after a step."""
    seen: dict[int, set[str]] = defaultdict(set)
    for told in ranks:
        for step, weights in told.steps.items():
            seen[step].add(weights)
    for step, found in sorted(seen.items()):
        if len(found) > 1:
            yield f"the weights differ between ranks after step {step}"


def _sums(plan: Plan, ranks: Ranks) -> Iterator[str]:
    """What went in has been delivered or is remembered."""
    looks = zip(*(told.all("look") for told in ranks), strict=False)
    for every in looks:
        step = every[0]["step"]
        for kind in ("got", "table got"):
            if any(not np.array_equal(look[kind], every[0][kind]) for look in every):
                yield f"ranks have got different gradients by step {step}"
        table = [look["table given"] for look in every]
        yield from _balance(f"the table by step {step}", table, every[0]["table got"])
        if plan.options["feedback"] != "none":
            given = [look["before"] + look["given"] for look in every]
            got = every[0]["got"] + sum(look["after"] for look in every)
            yield from _balance(f"the residuals by step {step}", given, got)


def _balance(what: str, given: Sequence[Any], got: Any) -> Iterator[str]:
    size = sum(np.abs(each) for each in given) + np.abs(got)
    off = np.abs(sum(given) - got)
    wrong = ~(off <= OWN * size + LARGEST * size.max(initial=0.0))
    if wrong.any():
        at = int(np.argmax(np.where(wrong, np.nan_to_num(off, nan=np.inf), 0)))
        gave, has = float(sum(given).flat[at]), float(np.asarray(got).flat[at])
        yield (
            f"{what}: {int(wrong.sum())} of {wrong.size} sums do not hold; element "
            f"{at} was given {gave} and has {has}"
        )
