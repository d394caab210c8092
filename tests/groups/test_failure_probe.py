import threading

from thinwire.errors import PeerError
from thinwire.groups import failure_probe
from thinwire.groups.failure_probe import Failure, FailureProbe, Findings, diagnose


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
    monkeypatch.setattr(failure_probe, "GRACE_SECONDS", 0.1)
    mine = FailureProbe(store, 1, size)
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


def diagnosed(found, closed=()):
    return diagnose(Failure("exchange", 5.0, OSError("x"), frozenset(closed)), found)


def test_closed_connections_decide_among_the_missing():
    error = diagnosed(Findings(frozenset({1, 2})), closed={0, 2})
    assert error.ranks == (2,)
    assert str(error).startswith("rank 2 closed the connection in exchange (dead)")


def test_a_rank_that_closed_a_connection_and_reported_is_not_to_blame():
    error = diagnosed(Findings(frozenset({1, 2})), closed={0})
    assert error.ranks == (1, 2)
    assert str(error).startswith("ranks 1, 2 did not answer within 5 s in exchange")


def test_a_lost_store_points_at_its_host_unless_others_are_known_to_be_gone():
    gone = Findings(frozenset({0, 1, 2}), store_gone=True)
    assert diagnosed(gone).ranks == (0,)
    assert diagnosed(gone, closed={0, 2}).ranks == (0,)
    assert diagnosed(gone, closed={2}).ranks == (2,)


def test_nobody_is_to_blame_where_all_answer():
    error = diagnosed(Findings(frozenset()))
    assert not isinstance(error, PeerError)
    assert str(error) == "exchange failed, though every rank reported: x"
