"""Collectives: one algorithm per file."""

from thinwire.collectives.all_gather import AllGather
from thinwire.collectives.bf16 import BF16
from thinwire.collectives.by_rows import RowCollective
from thinwire.collectives.collective import Collective, Grade, MakeBuffer, Total
from thinwire.collectives.dense import Dense
from thinwire.collectives.gather_rows import GatherRows
from thinwire.collectives.gs_sgd import GsSGD
from thinwire.collectives.gtopk import GTopK
from thinwire.collectives.memory import CollectiveMemory
from thinwire.collectives.min_bytes import MinBytes
from thinwire.collectives.nodes import Nodes
from thinwire.collectives.ok_topk import OkTopK
from thinwire.collectives.s2 import S2
from thinwire.collectives.spardl import SparDL
from thinwire.collectives.step_summary import RowMemory
from thinwire.collectives.topk_dsa import TopKDSA
from thinwire.collectives.union_reduce import UnionReduce

__all__ = [
    "BF16",
    "S2",
    "AllGather",
    "Collective",
    "CollectiveMemory",
    "Dense",
    "GTopK",
    "GatherRows",
    "Grade",
    "GsSGD",
    "MakeBuffer",
    "MinBytes",
    "Nodes",
    "OkTopK",
    "RowCollective",
    "RowMemory",
    "SparDL",
    "TopKDSA",
    "Total",
    "UnionReduce",
]
