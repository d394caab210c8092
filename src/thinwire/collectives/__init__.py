"""Collectives: one algorithm per file, and policies that contain collectives."""

from thinwire.collectives.all_gather import AllGather
from thinwire.collectives.bf16 import BF16
from thinwire.collectives.by_size import BySize
from thinwire.collectives.collective import Collective, Grade, Room, State, Total
from thinwire.collectives.dense import Dense
from thinwire.collectives.gs_sgd import GsSGD
from thinwire.collectives.gtopk import GTopK
from thinwire.collectives.spardl import SparDL
from thinwire.collectives.warmup import Warmup

__all__ = [
    "BF16",
    "AllGather",
    "BySize",
    "Collective",
    "Dense",
    "GTopK",
    "Grade",
    "GsSGD",
    "Room",
    "SparDL",
    "State",
    "Total",
    "Warmup",
]
