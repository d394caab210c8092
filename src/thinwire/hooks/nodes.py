"""Which ranks are on which node, as torchrun and the host names say.

Every rank tells what it knows. All of them then see the same and decide alike, so that
what is wrong anywhere is an error on every rank.
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from thinwire.choosers.chooser import each_replaced
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

# Without a launcher that sets them, host names alone decide.
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
    found.check(group.size)
    return replace(reducer, collective=found)


def refuse_nodes(reducer: Pipeline) -> None:
    """Refuse nodes for a sharded model: its mesh says what is near."""
    if _nodes_of(reducer.collective) is not None:
        raise ConfigError(
            "nodes is for models that every rank has whole: for a sharded one leave it "
            "out, and make the shard dimension of the mesh the ranks of a node"
        )


def what_is_known() -> Told:
    """What this process knows of its node."""
    known = {name: os.environ.get(name) for name in _VARIABLES}
    return {"host": socket.gethostname(), **known}


def find_nodes(told: Sequence[Told]) -> Placement:
    """The ranks of every node, from what each rank knows.

    >>> find_nodes([{"host": "a"}, {"host": "a"}, {"host": "b"}, {"host": "b"}])
    ((0, 1), (2, 3))
    """
    for name in _VARIABLES:
        without = [rank for rank, each in enumerate(told) if not each.get(name)]
        if 0 < len(without) < len(told):
            raise ConfigError(
                f"nodes is 'auto' and ranks {without} have no {name} in their "
                f"environment, as others have: {REMEDY}"
            )
    key = "GROUP_RANK" if told[0].get("GROUP_RANK") else "host"
    nodes: dict[object, list[int]] = {}
    for rank, each in enumerate(told):
        nodes.setdefault(_value(each, key, rank), []).append(rank)
    for ranks in nodes.values():
        _check_node(told, ranks)
    if len({len(ranks) for ranks in nodes.values()}) > 1:
        counts = ", ".join(
            f"{len(ranks)} on {told[ranks[0]].get('host')}" for ranks in nodes.values()
        )
        raise ConfigError(
            f"nodes is 'auto' and the nodes have different numbers of ranks: {counts}. "
            "Start equally many on each, or leave nodes out"
        )
    return tuple(sorted(tuple(ranks) for ranks in nodes.values()))


def _check_node(told: Sequence[Told], ranks: Sequence[int]) -> None:
    """Check what the ranks of one node say; those of a group may be some of them."""
    hosts = sorted({str(told[rank].get("host")) for rank in ranks})
    if len(hosts) > 1:
        raise ConfigError(
            f"nodes is 'auto' and ranks {list(ranks)} have the same GROUP_RANK on "
            f"different hosts {hosts}: {REMEDY}"
        )
    sizes = {_value(told[rank], "LOCAL_WORLD_SIZE", rank) for rank in ranks}
    places = {_value(told[rank], "LOCAL_RANK", rank) for rank in ranks}
    size = next(iter(sizes))
    fits = len(sizes) == 1 and (size is None or len(ranks) <= size)
    if not fits or (places != {None} and len(places) < len(ranks)):
        raise ConfigError(
            f"nodes is 'auto' and ranks {list(ranks)}, which are on one node, have "
            f"LOCAL_RANK {sorted(places, key=str)} and LOCAL_WORLD_SIZE "
            f"{sorted(sizes, key=str)}, which do not fit together: {REMEDY}"
        )


def _value(told: Told, name: str, rank: int) -> Any:
    """A host's name, or a number of torchrun's; None if it is not set."""
    text = told.get(name)
    if name == "host" or not text:
        return text or None
    # Not "00" or "01", which no launcher writes.
    found = re.fullmatch("0|[1-9][0-9]{0,8}", str(text))
    if found is None or (text == "0" and name == "LOCAL_WORLD_SIZE"):
        raise ConfigError(
            f"nodes is 'auto' and {name} is {text!r:.100} on rank {rank}: {REMEDY}"
        )
    return int(found[0])


def _nodes_of(collective: Collective) -> Nodes | None:
    """The first collective on nodes; all of them have the same ones."""
    found: list[Nodes] = []

    def note(each: Collective) -> Collective:
        found.extend([each] if isinstance(each, Nodes) else [])
        return each

    each_replaced(collective, note)
    return found[0] if found else None
