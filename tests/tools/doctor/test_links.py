"""Connections between two ends of this process."""

import socket
import sys
from threading import Thread

import pytest

from thinwire.tools.doctor import answering, interface, links
from thinwire.tools.doctor.facts import Facts
from thinwire.tools.doctor.interface import Interface
from thinwire.tools.doctor.names import Name


def at(port, address="127.0.0.1"):
    return Facts(interface=Interface("lo", address), port=port)


def tried(port, rank=1):
    return links.attempt((0, rank), {rank: at(port)})


def test_a_link_is_measured_both_ways():
    with answering.answering("127.0.0.1", 1) as port:
        link = tried(port)
    assert link.why == ""
    assert min(link.latency, link.there, link.back, link.unsure) > 0


def test_transfers_carry_the_bytes_that_are_counted():
    ours, theirs = socket.socketpair()
    nbytes = 3 * len(answering.CHUNK) + 5
    sender = Thread(target=answering.send, args=(theirs, nbytes))
    with ours, theirs:
        sender.start()
        answering.take(ours, nbytes)
        sender.join()
        theirs.sendall(b"end")
        assert answering.receive(ours, 3) == b"end"
        theirs.close()
        with pytest.raises(ConnectionResetError):
            answering.take(ours, 1)


def test_another_rank_at_the_address_is_named():
    with answering.answering("127.0.0.1", 2) as port:
        assert tried(port).why == "rank 2 answers there"


def test_a_port_that_is_closed():
    with answering.answering("127.0.0.1", 1) as port:
        pass
    assert tried(port).why == "connection refused"


def test_a_peer_that_never_answers(monkeypatch):
    monkeypatch.setattr(answering, "PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no answer" in tried(silent.getsockname()[1]).why


def test_a_peer_that_hangs_up():
    def hang_up():
        server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=hang_up, daemon=True).start()
        assert tried(server.getsockname()[1]).why


def test_an_address_that_is_not_of_this_host_answers_nothing():
    for address in ("192.0.2.77", ""):
        with answering.answering(address, 0) as port:
            assert port == 0


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /sys and /proc")


@linux
def test_interfaces_and_their_addresses(monkeypatch):
    assert "127.0.0.1" in interface.addresses()["lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    used = interface.used(Name())
    assert (used.name, used.address, used.family) == ("lo", "127.0.0.1", "IPv4")
    assert used.named
    assert used.loopback


@linux
def test_without_the_variable_the_name_of_the_host_decides(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    every = {"lo": ["127.0.0.1", "::1"], "eth7": ["10.1.2.3"]}
    monkeypatch.setattr(interface, "addresses", lambda: every)
    host = Name("host", ("10.9.9.9", "10.1.2.3"), ("10.1.2.3",))
    assert interface.used(host).name == "eth7"
    # Debian's name for a host without a fixed address; and none at all.
    for address in ("127.0.1.1", "127.0.0.1"):
        assert interface.used(Name("host", (address,), (address,))).name == "lo"
    assert interface.used(Name("host")).address == "127.0.0.1"
    assert interface.used(Name("host", ("::1",), ("::1",))).family == "IPv6"


def test_only_hardware_and_bonds_know_their_speed(monkeypatch, tmp_path):
    monkeypatch.setattr(interface, "_SETTINGS", tmp_path)
    contents = {"eth0": "1000", "veth0": "10000", "bond0": "20000", "eth1": "-1"}
    for name, speed in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(f"{speed}\n")
    for folder in ("eth0/device", "eth1/device", "bond0/bonding"):
        (tmp_path / folder).mkdir()
    names = [*contents, "none"]
    speeds = {name: interface.speed_of(name) for name in names}
    assert speeds == {
        "eth0": 10**9,
        "veth0": None,
        "bond0": 2 * 10**10,
        "eth1": None,
        "none": None,
    }
