"""Facts and links with one thing wrong: what is said, and the remedy."""

from dataclasses import replace

import pytest

from thinwire.tools.doctor import between_ranks, of_a_rank
from thinwire.tools.doctor.facts import Facts
from thinwire.tools.doctor.findings import Findings
from thinwire.tools.doctor.interface import Interface
from thinwire.tools.doctor.kernel_cache import KernelCache
from thinwire.tools.doctor.links import Link, schedule, worst
from thinwire.tools.doctor.names import Name
from thinwire.tools.doctor.problem import Problem, merged

GIGABIT = 10**9
LOCAL = ("127.0.0.1",)


def facts(rank=0, **changes):
    address = f"10.0.0.{rank + 1}"
    speeds = {"eth0": 10 * GIGABIT}
    healthy = Facts(
        host=Name(f"host{rank}", (address,), (address,)),
        localhost=Name("localhost", LOCAL, LOCAL),
        network=f"network {rank}",
        machine=f"machine {rank}",
        versions={"torch": "2.6.0", "thinwire": "0.2.0"},
        interface=Interface("eth0", address, False, ("lo", "eth0"), speeds),
        cores=(0, 1, 2, 3),
        threads=2,
        huge_pages="madvise",
        cache=KernelCache("/cache"),
        port=2000,
    )
    return replace(healthy, **changes)


def link(first, second, rate=1.2e9, **changes):
    return replace(Link(first, second, there=rate, back=rate), **changes)


def findings(*every, links=(), **more):
    return Findings(0, len(every), dict(enumerate(every)), links=list(links), **more)


HEALTHY = (facts(0), facts(1), facts(2))
LINKS = (link(0, 1), link(0, 2), link(1, 2))
SPEEDS = {"eth0": GIGABIT, "eth1": 10 * GIGABIT}


def interface(**changes):
    return replace(facts().interface, **changes)


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        (
            {"interface": interface(name="x0", address="", named=True)},
            "'x0': no interface",
            "those with an address: lo, eth0",
        ),
        (
            {"interface": interface(speeds=SPEEDS)},
            "Gloo uses eth0 (1 Gbit/s), but eth1 has 10 Gbit/s",
            "export GLOO_SOCKET_IFNAME=eth1",
        ),
        ({"host": Name("host0")}, "'host0' does not resolve; Gloo", "/etc/hosts"),
        (
            {"host": Name("host0", ("10.9.9.9",))},
            "resolve to 10.9.9.9, not an address of this host",
            "/etc/hosts",
        ),
        ({"localhost": Name("localhost")}, "localhost does not", "127.0.0.1 localhost"),
        (
            {"localhost": Name("localhost", ("::1", *LOCAL), LOCAL)},
            "localhost resolves to ::1, but IPv6 is off",
            "remove '::1 localhost'",
        ),
        (
            {"localhost": Name("localhost", LOCAL, LOCAL, 4.8)},
            "to resolve 'localhost' took 5 s",
            "name server",
        ),
        ({"huge_pages": "never"}, "huge pages are off", "echo madvise >"),
        ({"cache": KernelCache(why="no locator")}, "no locator", "NUMBA_CACHE_DIR="),
        (
            {"cache": KernelCache("/cache", refused="/mine")},
            "'/mine', which cannot be written; kernels are kept in /cache",
            "unset NUMBA_CACHE_DIR",
        ),
    ],
)
def test_of_a_rank(changes, what, remedy):
    assert list(of_a_rank.problems(3, facts())) == []
    (problem,) = of_a_rank.problems(3, facts(**changes))
    assert what in problem.what
    assert remedy in problem.remedy
    assert problem.ranks == (3,)


def test_what_is_not_known_is_no_problem():
    unknown = interface(speeds={"eth1": 10 * GIGABIT})
    assert list(of_a_rank.problems(0, facts(interface=unknown, huge_pages=""))) == []
    elsewhere = Interface("en0", "", named=True)  # not Linux: nothing is listed
    assert list(of_a_rank.problems(0, facts(interface=elsewhere))) == []


def wrong(rank, **changes):
    return [
        replace(each, **(changes if r == rank else {}))
        for r, each in enumerate(HEALTHY)
    ]


SHARED = [facts(r, machine="one", network="one", threads=2) for r in range(3)]


@pytest.mark.parametrize(
    ("found", "what", "remedy"),
    [
        (findings(*HEALTHY, unreachable="rank 0 at a"), "cannot meet: rank 0", "start"),
        (
            findings(*HEALTHY, missing=(3, 4, 5), patience=30),
            "missing after 30 s: ranks 3-5",
            "--wait",
        ),
        (
            findings(*wrong(1, versions={"torch": "2.7.0", "thinwire": "0.2.0"})),
            "versions of torch: ranks 0, 2: 2.6.0; rank 1: 2.7.0",
            "same version",
        ),
        (
            findings(*wrong(1, versions={"torch": "2.6.0"})),
            "versions of thinwire: ranks 0, 2: 0.2.0; rank 1: none",
            "same version",
        ),
        (findings(*wrong(2, threads=8)), "ask for 8 threads, and have 4", "THREADS=4"),
        (findings(*wrong(2, omp="16,2")), "ask for 16 threads", "THREADS=4"),
        (findings(*SHARED), "3 ranks of one machine ask for 6 threads", "THREADS=1"),
        (
            findings(*wrong(1, interface=interface(address="fd00::2"))),
            "differ in kind: ranks 0, 2: IPv4; rank 1: IPv6",
            "export GLOO_SOCKET_IFNAME=NAME",
        ),
        (
            findings(*wrong(1, interface=interface(address="127.0.1.1"))),
            "Gloo uses loopback, which no other host can reach",
            "/etc/hosts",
        ),
        (
            findings(*HEALTHY, links=[link(0, 1, why="no answer"), link(0, 2)]),
            "do not reach each other (no answer): 0-1",
            "open TCP ports",
        ),
        (findings(*HEALTHY, gloo={2: "it timed out"}), "Gloo fails: it timed", "check"),
        (
            findings(*HEALTHY, links=[*LINKS[:2], link(1, 2, rate=2e8)]),
            "slow links: 1-2 (1.6 Gbit/s); the fastest has 9.6 Gbit/s",
            "cables",
        ),
        (
            findings(*HEALTHY, links=[link(0, 1, rate=1e8), link(0, 2, rate=1.1e8)]),
            "0-1, 0-2 (the slowest 800 Mbit/s); these interfaces have 10 Gbit/s",
            "export GLOO_SOCKET_IFNAME=NAME",
        ),
        (
            findings(*HEALTHY, links=[link(0, 1, ahead=-2.0, unsure=0.1)]),
            "the clock of rank 1 is 2.0 s behind that of rank 0",
            "chrony",
        ),
    ],
)
def test_between_ranks(found, what, remedy):
    assert list(between_ranks.problems(findings(*HEALTHY, links=LINKS))) == []
    (problem,) = between_ranks.problems(found)
    assert what in problem.what
    assert remedy in problem.remedy


def test_ranks_of_one_host_may_use_loopback_and_are_not_compared_with_a_network():
    loopback = interface(address="127.0.0.1", speeds={"lo": 400 * GIGABIT}, name="lo")
    ranks = [replace(each, interface=loopback, threads=1) for each in SHARED]
    links = [link(0, 1), link(0, 2, rate=1e6)]
    assert list(between_ranks.problems(findings(*ranks, links=links))) == []


def test_a_clock_that_is_not_known_well_is_not_blamed():
    found = findings(*HEALTHY, links=[link(0, 1, ahead=0.5, unsure=0.6)])
    assert list(between_ranks.problems(found)) == []


def test_a_rank_without_an_address_is_blamed_once():
    ranks = wrong(1, port=0, interface=interface(address=""))
    found = findings(*ranks, links=[link(0, 1, why="no address to connect to")])
    assert list(between_ranks.problems(found)) == []


def test_what_several_ranks_share_is_said_once():
    same = [Problem("a", "b", (rank,)) for rank in (2, 0)]
    assert list(merged([*same, Problem("a", "c", (1,))])) == [
        Problem("a", "b", (0, 2)),
        Problem("a", "c", (1,)),
    ]


def test_facts_of_another_version_are_understood():
    given = {"threads": 3, "new": 1, "host": {"name": "a", "addresses": ["b"], "x": 0}}
    assert Facts.read(given) == Facts(host=Name("a", ("b",)), threads=3)


@pytest.mark.parametrize("ranks", [2, 3, 8, 9, 12])
def test_every_rank_has_one_partner_at_a_time(ranks):
    turns = list(schedule(ranks))
    for turn in turns:
        busy = [rank for pair in turn for rank in pair]
        assert len(busy) == len(set(busy))
    pairs = [frozenset(pair) for turn in turns for pair in turn]
    assert len(pairs) == len(set(pairs))
    every = ranks * (ranks - 1) // 2 if ranks <= 8 else ranks
    assert len(pairs) == every


def test_links_that_fail_are_shown_first():
    slow, broken = link(0, 1, rate=1.0), link(1, 2, why="no answer")
    assert worst([link(0, 2), slow, broken], 2) == [broken, slow]
