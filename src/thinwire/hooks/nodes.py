"""Which ranks are on which node, as torchrun and the host names say.

Every rank tells what it knows. All of them then see the same and decide alike, so that
what is wrong anywhere is an error on every rank.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from thinwire.choosers import Chooser
from thinwire.choosers.on_nodes import placed
from thinwire.collectives import Collective, Nodes
from thinwire.collectives.placement import Placement
from thinwire.errors import ConfigError
from thinwire.groups import Group
from thinwire.hooks.agreement import gather_json
from thinwire.reducers import Pipeline

Told = Mapping[str, object]

REMEDY = (
    "start all ranks with torchrun, or give nodes as the number of consecutive ranks "
    "on each node, or as the ranks of every node"
)

# Where no launcher says how many ranks a node has, host names alone decide.
_VARIABLES = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def on_found_nodes(reducer: Pipeline, group: Group, device: torch.device) -> Pipeline:
    """The reducer on the nodes of these ranks, which all call this together.

    With a single node, or with one rank on each, it is the one without nodes.
    """
    given = _nodes_of(reducer.collective)
    if given is None:
        return reducer
    if given.nodes == "auto":
        told = gather_json(group, what_is_known(), device, call="attach, nodes='auto'")
        placement = find_nodes(told)
    else:
        placement = given.placement(group.size)
    several = len(placement) > 1 and len(placement[0]) > 1
    found = placed(reducer.collective, placement if several else None)
    return replace(reducer, collective=found)


def what_is_known() -> Told:
    """What this process knows of its node."""
    known = {name: os.environ.get(name) for name in _VARIABLES}
    return {"host": socket.gethostname(), **known}


def find_nodes(told: Sequence[Told]) -> Placement:
    """The ranks of every node, from what each rank knows.

    >>> find_nodes([{"host": "a"}, {"host": "a"}, {"host": "b"}, {"host": "b"}])
    ((0, 1), (2, 3))
    """
    by_torchrun = [all(_text(each, n) for n in _VARIABLES) for each in told]
    if any(by_torchrun) and not all(by_torchrun):
        raise ConfigError(
            f"nodes is 'auto' and {_named(by_torchrun, which=False)} have not all of "
            f"{', '.join(_VARIABLES)} in their environment, as others have: {REMEDY}"
        )
    nodes: dict[object, list[int]] = {}
    for rank, each in enumerate(told):
        key = _number(each, "GROUP_RANK", rank) if all(by_torchrun) else each["host"]
        nodes.setdefault(key, []).append(rank)
    if all(by_torchrun):
        for ranks in nodes.values():
            _check_node(told, ranks)
    if len({len(ranks) for ranks in nodes.values()}) > 1:
        counts = ", ".join(f"{len(r)} on {_text(told[r[0]], 'host')}" for r in nodes.values())
        raise ConfigError(
            f"nodes is 'auto' and the nodes have different numbers of ranks: {counts}. "
            "Start equally many on each, or leave nodes out"
        )
    return tuple(sorted(tuple(ranks) for ranks in nodes.values()))


def _check_node(told: Sequence[Told], ranks: Sequence[int]) -> None:
    """Check what the ranks of one node say: of a group of them, there may be fewer."""
    hosts = {_text(told[rank], "host") for rank in ranks}
    if len(hosts) > 1:
        raise ConfigError(
            f"nodes is 'auto' and ranks {list(ranks)} have the same GROUP_RANK on "
            f"different hosts {sorted(hosts)}: {REMEDY}"
        )
    sizes = {_number(told[rank], "LOCAL_WORLD_SIZE", rank) for rank in ranks}
    places = {_number(told[rank], "LOCAL_RANK", rank) for rank in ranks}
    if len(sizes) > 1 or max(places) >= max(sizes) or len(places) < len(ranks):
        raise ConfigError(
            f"nodes is 'auto' and ranks {list(ranks)} of one node have LOCAL_RANK "
            f"{sorted(places)} and LOCAL_WORLD_SIZE {sorted(sizes)}, which do not fit "
            f"together: {REMEDY}"
        )


def _text(told: Told, name: str) -> str | None:
    value = told.get(name)
    return value if isinstance(value, str) and value else None


def _number(told: Told, name: str, rank: int) -> int:
    text = told.get(name)
    plain = isinstance(text, str) and text.isascii() and text.isdecimal()
    least = 1 if name == "LOCAL_WORLD_SIZE" else 0
    # "00" and "01" are what no launcher writes.
    if not plain or str(int(str(text))) != text or int(str(text)) < least:
        raise ConfigError(
            f"nodes is 'auto' and {name} is {text!r:.100} on rank {rank}: {REMEDY}"
        )
    return int(str(text))


def _named(flags: Sequence[bool], *, which: bool) -> str:
    return f"ranks {[rank for rank, flag in enumerate(flags) if flag is which]}"


def _nodes_of(collective: Collective) -> Nodes | None:
    """The first collective on nodes; all of them have the same ones."""
    found: list[Nodes] = []

    def note(each: Collective) -> Collective:
        found.extend([each] if isinstance(each, Nodes) else [])
        return each

    each_replaced(collective, note)
    return found[0] if found else None
