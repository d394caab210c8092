"""Problems that show when the facts of ranks are compared, and in their links."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from thinwire.tools.doctor.facts import Facts
from thinwire.tools.doctor.findings import Findings
from thinwire.tools.doctor.interface import VARIABLE
from thinwire.tools.doctor.links import Link
from thinwire.tools.doctor.problem import Problem, ranges
from thinwire.tools.quantities import rate_text

Value = TypeVar("Value")

_MUCH_SLOWER = 4  # a link than the fastest: figures of one moment differ
_OF_NOMINAL = 4  # a link than its interface
_ONE_FLOW = 10**10  # bit/s that one connection reaches on any processor
_SKEW = 0.1  # seconds

_ONE_INTERFACE = f"on every host: export {VARIABLE}=NAME of the network between them"


def problems(found: Findings) -> Iterator[Problem]:
    """All problems between ranks."""
    yield from _meeting(found)
    yield from _versions(found.facts)
    yield from _threads(found.facts)
    yield from _networks(found.facts)
    yield from _unreached(found)
    yield from _slow(found)
    yield from _clocks(found.links)


def _meeting(found: Findings) -> Iterator[Problem]:
    if found.unreachable:
        yield Problem(
            f"the ranks cannot meet: {found.unreachable}",
            "start all ranks; check MASTER_ADDR, MASTER_PORT and firewalls",
        )
    elif found.missing:
        yield Problem(
            f"missing after {found.patience:g} s: {ranges(found.missing)}",
            "look at what their hosts print; wait longer with --wait",
        )


def _versions(facts: Mapping[int, Facts]) -> Iterator[Problem]:
    packages = {package for each in facts.values() for package in each.versions}
    for package in sorted(packages):
        versions = {n: each.versions.get(package, "none") for n, each in facts.items()}
        by = _grouped(versions, str)
        if len(by) > 1:
            said = "; ".join(f"{ranges(ranks)}: {value}" for value, ranks in by.items())
            yield Problem(
                f"ranks have different versions of {package}: {said}",
                "install the same version on every host",
            )


def _threads(facts: Mapping[int, Facts]) -> Iterator[Problem]:
    for ranks in _grouped(facts, lambda each: each.machine).values():
        every = [facts[rank] for rank in ranks]
        cores = len({core for each in every for core in each.cores})
        most = max(1, cores // len(every))
        threads = [_wanted(each) for each in every]
        if sum(threads) > max(cores, len(every)):
            yield Problem(
                f"{len(every)} rank{'s' * (len(every) > 1)} of one machine ask for "
                f"{sum(threads)} threads, and have {cores} cores",
                f"export OMP_NUM_THREADS={most}",
                tuple(ranks),
            )


def _wanted(facts: Facts) -> int:
    """Torch takes fewer than asked for where cores are few; other libraries do not."""
    asked = facts.omp.split(",")[0]
    return max(int(asked) if asked.isdigit() else 0, facts.threads)


def _networks(facts: Mapping[int, Facts]) -> Iterator[Problem]:
    families = _grouped(facts, lambda each: each.interface.family)
    families.pop("", None)
    if len(families) > 1:
        said = "; ".join(f"{ranges(ranks)}: {name}" for name, ranks in families.items())
        yield Problem(f"Gloo's addresses differ in kind: {said}", _ONE_INTERFACE)
    inward = [rank for rank, each in facts.items() if each.interface.loopback]
    if inward and len(_grouped(facts, lambda each: each.network)) > 1:
        yield Problem(
            "Gloo uses loopback, which no other host can reach",
            f"{_ONE_INTERFACE}; or repair the host's name in /etc/hosts",
            tuple(inward),
        )


def _unreached(found: Findings) -> Iterator[Problem]:
    pairs: dict[str, list[str]] = defaultdict(list)
    for link in found.links:
        # Of a rank without an address more is said elsewhere.
        if link.why and found.facts[link.second].port:
            pairs[link.why].append(f"{link.first}-{link.second}")
    for why, between in pairs.items():
        yield Problem(
            f"ranks do not reach each other ({why}): {', '.join(between)}",
            f"open TCP ports between the hosts; or, {_ONE_INTERFACE}",
        )
    addressed = {r: why for r, why in found.gloo.items() if found.facts[r].port}
    for why, ranks in _grouped(addressed, str).items():
        yield Problem(
            f"Gloo fails: {why}",
            f"check {VARIABLE} and the addresses above",
            tuple(ranks),
        )


def _slow(found: Findings) -> Iterator[Problem]:
    """Links between hosts: those within a host measure its processor."""
    facts = found.facts
    distant = [
        link
        for link in found.links
        if not link.why and facts[link.first].network != facts[link.second].network
    ]
    best = max((link.slower for link in distant), default=0.0)
    slow = [link for link in distant if link.slower * _MUCH_SLOWER < best]
    if slow:
        yield Problem(
            f"{_rates(slow)}; the fastest has {rate_text(8 * best)}",
            "look at cables, switches and other traffic of these hosts",
        )
    wasted: dict[int, list[Link]] = defaultdict(list)
    for link in (link for link in distant if link not in slow):
        ends = (facts[link.first].interface, facts[link.second].interface)
        nominal = min((end.speed for end in ends if end.speed), default=0)
        if 8 * link.slower * _OF_NOMINAL < min(nominal, _ONE_FLOW):
            wasted[nominal].append(link)
    for nominal, links in wasted.items():
        yield Problem(
            f"{_rates(links)}; these interfaces have {rate_text(nominal)}",
            f"look for other traffic; or, {_ONE_INTERFACE}",
        )


def _rates(links: Sequence[Link]) -> str:
    slowest = min(links, key=lambda link: link.slower)
    pairs = ", ".join(f"{link.first}-{link.second}" for link in links)
    among = "the slowest " if len(links) > 1 else ""
    return f"slow links: {pairs} ({among}{rate_text(8 * slowest.slower)})"


def _clocks(links: Iterable[Link]) -> Iterator[Problem]:
    for link in links:
        if abs(link.ahead) > _SKEW + link.unsure:
            yield Problem(
                f"the clock of rank {link.second} is {abs(link.ahead):.1f} s "
                f"{'ahead of' if link.ahead > 0 else 'behind'} that of rank "
                f"{link.first}: their logs do not line up",
                "run a time service, such as chrony, on every host",
            )


def _grouped(
    values: Mapping[int, Value], key: Callable[[Value], str]
) -> dict[str, list[int]]:
    by: dict[str, list[int]] = {}
    for rank, value in values.items():
        by.setdefault(key(value), []).append(rank)
    return by
