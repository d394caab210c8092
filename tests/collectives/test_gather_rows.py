"""GatherRows: the rows of all ranks; invalid bytes are refused."""

import struct

import pytest
import torch

from tests.collectives.row_sums import some_rows, sums
from thinwire.channel import Channel
from thinwire.collectives import GatherRows, RowMemory, gather_rows
from thinwire.errors import WireError
from thinwire.groups import Counted, simulate
from thinwire.rows import Rows


def test_what_it_costs():
    def body(group):
        counted = Counted(group)
        mine = some_rows(0, 0, width=5)
        GatherRows().sum_rows(mine, Channel(counted), RowMemory())
        return counted.traffic.cost

    for ranks in (1, 2, 5):
        assert set(simulate(ranks, body)) == {gather_rows.card(5, ranks, 20)}


def test_rows_are_added_in_order_of_rank():
    def rows(rank, step):
        return Rows.of({7: [(1e8, 1.0, -1e8)[rank]]}, count=9)

    ((total, _),) = sums(GatherRows(), 3, rows, steps=1)
    assert total.to_dict() == {7: [0.0]}  # 1e8 + 1 is 1e8 in float32


def packed(ids, values):
    head = struct.pack("<q", len(ids))
    body = head + struct.pack(f"<{len(ids)}i{len(values)}f", *ids, *values)
    return torch.frombuffer(bytearray(body), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (torch.zeros(5, dtype=torch.uint8), "5 bytes of rows"),
        (packed([1], [1.0]), "do not hold 1 rows of 2 elements"),
        (packed([1], [1.0, 2.0, 3.0]), "do not hold"),
        (torch.full((8,), 255, dtype=torch.uint8), "do not hold -1 rows"),
        (packed([9], [1.0, 2.0]), "up to 9"),
        (packed([-1], [1.0, 2.0]), "increase strictly"),
        (packed([3, 3], [0.0] * 4), "increase strictly"),
        (packed([4, 3], [0.0] * 4), "increase strictly"),
    ],
)
def test_bytes_that_are_no_rows_are_refused(body, said):
    class Liar:
        rank, size = 0, 2

        def all_gather(self, mine, *, nbytes):
            return [mine, body]

    mine = Rows.of({0: [1.0, 2.0]}, count=9)
    with pytest.raises(WireError, match=f"from rank 1: .*{said}"):
        GatherRows().sum_rows(mine, Channel(Liar()), RowMemory())


def test_bytes_that_are_rows_are_taken():
    class Peer:
        rank, size = 0, 2

        def all_gather(self, mine, *, nbytes):
            return [mine, packed([0, 8], [1.0, 2.0, 3.0, 4.0])]

    mine = Rows.of({0: [1.0, 2.0]}, count=9)
    total = GatherRows().sum_rows(mine, Channel(Peer()), RowMemory())
    assert total.to_dict() == {0: [2.0, 4.0], 8: [3.0, 4.0]}
