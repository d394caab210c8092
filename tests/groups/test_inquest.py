import threading

from thinwire.errors import PeerError
from thinwire.groups import inquest
from thinwire.groups.inquest import Failure, Findings, Inquest, verdict


class Store(dict):
    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)


class GoneStore(Store):
    def check(self, keys):
        raise RuntimeError("connection reset")


class StuckStore(Store):
    def check(self, keys):
        threading.Event().wait()


def findings(monkeypatch, store, size=4):
    monkeypatch.setattr(inquest, "GRACE_SECONDS", 0.1)
    mine = Inquest(store, 1, size)
    mine.report()
    return mine.findings()


def test_ranks_that_do_not_report_are_missing(monkeypatch):
    store = Store({"alive/0": "1"})
    assert findings(monkeypatch, store) == Findings(frozenset({2, 3}))
    assert "alive/1" in store


def test_all_have_reported(monkeypatch):
    store = Store({f"alive/{rank}": "1" for rank in range(4)})
    assert findings(monkeypatch, store) == Findings(frozenset())


def test_a_store_that_is_gone_or_stuck_says_nothing(monkeypatch):
    assert findings(monkeypatch, GoneStore()).store_gone
    assert findings(monkeypatch, StuckStore()).store_gone


def _verdict(found, closed=()):
    return verdict(Failure("exchange", 5.0, OSError("x"), frozenset(closed)), found)


def test_closed_connections_decide_among_the_missing():
    error = _verdict(Findings(frozenset({1, 2})), closed={0, 2})
    assert error.ranks == (2,)
    assert str(error).startswith("rank 2 closed the connection in exchange (dead)")


def test_whoever_closed_a_connection_and_reported_is_not_to_blame():
    error = _verdict(Findings(frozenset({1, 2})), closed={0})
    assert error.ranks == (1, 2)
    assert str(error).startswith("ranks 1, 2 did not answer within 5 s in exchange")


def test_a_lost_store_points_at_its_host_unless_others_are_known_to_be_gone():
    gone = Findings(frozenset({0, 1, 2}), store_gone=True)
    assert _verdict(gone).ranks == (0,)
    assert _verdict(gone, closed={0, 2}).ranks == (0,)
    assert _verdict(gone, closed={2}).ranks == (2,)


def test_nobody_is_to_blame_where_all_answer():
    error = _verdict(Findings(frozenset()))
    assert not isinstance(error, PeerError)
    assert str(error) == "exchange failed, though every rank answers: x"
