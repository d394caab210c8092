"""Rows: lookup by number, zeros for rows that are not listed."""

import torch

from thinwire.rows import Rows


def test_looking_up_rows():
    rows = Rows.of({1: [1.0, 2.0], 4: [float("nan"), 3.0]}, count=6)
    assert rows.at(torch.tensor([1], dtype=torch.int32)).tolist() == [[1.0, 2.0]]
    # Next to a row that is not a number, a row that is not there is still zero.
    assert rows.at(torch.tensor([0, 3, 5])).tolist() == [[0.0, 0.0]] * 3
    assert rows.at(torch.tensor([], dtype=torch.int64)).shape == (0, 2)


def test_looking_up_in_an_empty_list():
    none = Rows(torch.tensor([], dtype=torch.int32), torch.empty(0, 3), 5)
    assert (none.nnz, none.width, none.to_dict()) == (0, 3, {})
    assert none.at(torch.tensor([0, 4])).tolist() == [[0.0] * 3] * 2


def test_what_is_looked_up_is_a_copy():
    rows = Rows.of({2: [1.0]}, count=3)
    rows.at(rows.ids).zero_()
    assert rows.to_dict() == {2: [1.0]}
