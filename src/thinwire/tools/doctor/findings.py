"""An examination of all ranks together."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from thinwire.tools.doctor import gloo, links
from thinwire.tools.doctor.answering import answering
from thinwire.tools.doctor.facts import Facts, collect
from thinwire.tools.doctor.links import Link
from thinwire.tools.doctor.meeting import Meeting, UnreachableError, meet, place


@dataclass(frozen=True, slots=True)
class Findings:
    """The facts of those ranks that came, and what they found together."""

    rank: int
    size: int
    facts: dict[int, Facts]
    missing: tuple[int, ...] = ()  # ranks that did not come, or did not stay
    unreachable: str = ""  # why the ranks could not meet
    patience: float = 0.0  # seconds that they waited for each other
    links: list[Link] = field(default_factory=list)
    gloo: dict[int, str] = field(default_factory=dict)  # of ranks where it failed

    @property
    def tells(self) -> bool:
        """Whether this rank prints: the first of those that came."""
        return self.rank == min(self.facts)


@contextmanager
def examined(patience: float) -> Iterator[Findings]:
    """What all ranks found; none leaves before the one that tells has told it.

    A launcher ends the others as soon as one has ended with an error.
    """
    rank, size = place()
    alone = Findings(rank, size, {rank: collect()}, patience=patience)
    try:
        meeting = meet(patience)
        found = _together(meeting, alone)
    except UnreachableError as error:
        missing = (0,) if rank else ()  # without a store, of others nothing is known
        yield replace(alone, missing=missing, unreachable=str(error))
        return
    try:
        yield found
    finally:
        meeting.leave()


def _together(meeting: Meeting, found: Findings) -> Findings:
    mine = found.facts[meeting.rank]
    failed: dict[int, str] = {}
    with answering(mine.interface.address, meeting.rank) as port:
        told = meeting.gather("facts", asdict(replace(mine, port=port)))
        facts = {rank: Facts.read(each) for rank, each in told.items()}
        found = replace(found, facts=facts)
        if not meeting.late:
            found = replace(found, links=links.measure(meeting, facts))
        if not meeting.late and not any(link.why for link in found.links):
            failed = meeting.gather("gloo", gloo.trial(meeting))  # else it only waits
    failed = {rank: why for rank, why in failed.items() if why}
    return replace(found, missing=tuple(sorted(meeting.late)), gloo=failed)
