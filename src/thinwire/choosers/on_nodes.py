"""Collectives between nodes, under the choosers that pick one in every step."""

from dataclasses import replace

from thinwire.choosers.auto import Auto
from thinwire.choosers.chooser import each_replaced
from thinwire.collectives import Collective, Dense, Nodes
from thinwire.collectives.placement import NodesOption


def on_nodes(collective: Collective, nodes: NodesOption | None) -> Collective:
    """The same between nodes, with dense sums inside them; None changes nothing.

    `Dense` stays: the library's all-reduce has its own way with nodes. `Auto` tries its
    candidates both ways.

    >>> from thinwire.choosers import Warmup
    >>> from thinwire.collectives import AllGather
    >>> on_nodes(Warmup(AllGather(0.01), dense=2), 4).then
    Nodes(between=AllGather(density=0.01), nodes=4)
    """
    if nodes is None:
        return collective

    def wrapped(each: Collective) -> Collective:
        return each if isinstance(each, Dense) else Nodes(each, nodes)

    if isinstance(collective, Auto):
        both = (*collective.candidates, *map(wrapped, collective.candidates))
        return replace(collective, candidates=tuple(dict.fromkeys(both)))
    return each_replaced(collective, wrapped)


def placed(collective: Collective, nodes: NodesOption | None) -> Collective:
    """The same on the nodes that were found; None if there is nothing to split."""

    def known(each: Collective) -> Collective:
        if not isinstance(each, Nodes):
            return each
        return each.between if nodes is None else Nodes(each.between, nodes)

    return each_replaced(collective, known)
