"""Collectives: one algorithm per file, and policies that contain collectives."""

from thinwire.collectives.all_gather import AllGather
from thinwire.collectives.auto import Auto
from thinwire.collectives.bf16 import BF16
from thinwire.collectives.by_rows import RowCollective
from thinwire.collectives.by_size import BySize
from thinwire.collectives.cheapest import Cheapest
from thinwire.collectives.collective import Collective, Grade, Room, State, Total
from thinwire.collectives.dense import Dense
from thinwire.collectives.gather_rows import GatherRows
from thinwire.collectives.gs_sgd import GsSGD
from thinwire.collectives.gtopk import GTopK
from thinwire.collectives.s2 import S2
from thinwire.collectives.spardl import SparDL
from thinwire.collectives.union import Union
from thinwire.collectives.warmup import Warmup

__all__ = [
    "BF16",
    "S2",
    "AllGather",
    "Auto",
    "BySize",
    "Cheapest",
    "Collective",
    "Dense",
    "GTopK",
    "GatherRows",
    "Grade",
    "GsSGD",
    "Room",
    "RowCollective",
    "SparDL",
    "State",
    "Total",
    "Union",
    "Warmup",
]
