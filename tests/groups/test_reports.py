"""What ranks report of the messages that were under way."""

import pytest

from thinwire.groups.reports import Report, Traced, contradiction


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "[]",
        "[0, 1, 2]",
        "[0, [[1]], []]",
        '["a", [], []]',
        "[Infinity, [], []]",
    ],
)
def test_what_is_no_report_says_nothing(text):
    assert Report.read(text) == Report()


def test_messages_are_numbered_by_peer():
    traced = Traced()
    traced.start([(1, 5), (2, 6)])
    traced.finish()
    assert traced.entries() == []
    traced.start([(1, 7), (1, 8), (3, 9)])
    assert traced.entries() == [(1, 1, 7), (1, 2, 8), (3, 0, 9)]


def test_only_one_message_can_be_disagreed_on():
    # Rank 1 has what rank 0 sent it, and waits for its next message.
    waits = Report(0, [(2, 0, 5)], [(0, 4, 99)])
    sender = Report(0, [(1, 3, 50)], [(2, 8, 10)])
    assert contradiction({0: sender, 1: waits}) is None
    found = contradiction({0: sender, 1: waits, 2: Report(0, [(0, 8, 11)])})
    assert found is not None
    assert found.ranks == (2, 0)
    assert found.text == "rank 2 sends 11 bytes where rank 0 expects 10"
