"""FailureProbe: finds the dead or stuck ranks after a call has failed.

The error of a backend often does not name a rank. So every rank whose call fails writes
a report into the store of the process group and waits for the others' reports. A rank
that does not report is dead or stuck. Where all report, two of them may disagree on a
message (`reports.py`). The host of the store may be dead or stuck too,
so a separate thread reads the store, and the wait for this thread has a limit.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from thinwire.errors import GroupError, PeerError
from thinwire.groups.reports import Report, contradiction

GRACE_SECONDS = 2.0  # for other ranks to find a closed connection, on a busy machine
_MARGIN_SECONDS = 0.5  # a thread that keeps its own deadline is not cut short
_POLL_SECONDS = 0.02


class Store(Protocol):
    """The part of a torch.distributed store that is needed here."""

    def set(self, key: str, value: str, /) -> None:
        """Write a key."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all the keys have been written."""
        ...

    def get(self, key: str, /) -> str | bytes:
        """What was written to a key."""
        ...


@dataclass(frozen=True, slots=True)
class Findings:
    """Ranks that did not report, the others' reports, and whether the store replied."""

    missing: frozenset[int]
    store_gone: bool = False
    reports: Mapping[int, Report] = field(default_factory=dict, compare=False)


class FailureProbe:
    """One rank's report, and its wait for the reports of the others."""

    def __init__(
        self, store: Store, rank: int, size: int, report: Report | None = None
    ) -> None:
        self._store = store
        self._rank = rank
        self._reports = {rank: report or Report()}
        self._missing = set(range(size)) - {rank}
        self._reported = threading.Event()
        self._replied = threading.Event()  # the store has looked for every rank
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._ask, daemon=True, name="failure-probe"
        )

    def report(self) -> None:
        """Report to the others that this rank is alive."""
        self._thread.start()
        self._reported.wait(GRACE_SECONDS)

    def findings(self) -> Findings:
        """The ranks that have not reported after the grace period."""
        self._over.wait(GRACE_SECONDS + _MARGIN_SECONDS)
        missing = frozenset(self._missing)
        gone = not self._replied.is_set()
        return Findings(missing, gone, dict(self._reports))

    def _ask(self) -> None:
        try:
            self._store.set(f"alive/{self._rank}", str(self._reports[self._rank]))
            self._reported.set()
            deadline = time.monotonic() + GRACE_SECONDS
            while self._missing and time.monotonic() < deadline:
                self._discard(self._missing.copy())
                time.sleep(_POLL_SECONDS)
        except RuntimeError:  # what a store raises when its host is gone
            self._replied.clear()
        finally:
            self._reported.set()
            self._over.set()

    def _discard(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if self._store.check([f"alive/{rank}"]):
                self._reports[rank] = Report.read(self._store.get(f"alive/{rank}"))
                self._missing.discard(rank)
        self._replied.set()


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed; `closed` are peers whose connections are known to be gone."""

    call: str
    seconds: float
    error: Exception
    closed: frozenset[int] = frozenset()
    rank: int | None = None


def diagnose(failure: Failure, findings: Findings) -> GroupError:
    """The error to raise: a `PeerError` that names the ranks to blame, if any.

    >>> failure = Failure("exchange", 5.0, TimeoutError())
    >>> print(diagnose(failure, Findings(frozenset({2}))))  # doctest: +ELLIPSIS
    rank 2 did not answer within 5 s in exchange (dead or stuck); restart from ...
    """
    call, closed, missing = failure.call, failure.closed, findings.missing
    advice = "restart from the last checkpoint"
    if findings.store_gone and (0 in closed or not closed):
        host = "rank 0, its host as a rule, is dead or stuck"
        message = f"{call} failed and the store does not answer: {host}; {advice}"
        return PeerError(message, ranks=(0,))
    # A rank that closed its connections and is alive reported before that.
    named = tuple(sorted(missing & closed or missing))
    found = contradiction(findings.reports)
    if not named and found is not None:
        others = tuple(rank for rank in found.ranks if rank != failure.rank)
        message = f"{call} failed: {found.text}; start every rank with the same program"
        return PeerError(message, ranks=others)
    if not named:
        return GroupError(f"{call} failed, though every rank reported: {failure.error}")
    ranks = ("rank " if len(named) == 1 else "ranks ") + ", ".join(map(str, named))
    if missing & closed:
        what = f"closed the connection in {call} (dead)"
    else:
        seconds = f"{failure.seconds:g} s"
        what = f"did not answer within {seconds} in {call} (dead or stuck)"
    return PeerError(f"{ranks} {what}; {advice}", ranks=named)
