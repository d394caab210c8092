"""Hosts of a lab: they start, exchange messages, are cut off, are removed."""

import json
import sys
import threading
from pathlib import Path

import pytest

from tests.tools.lab.machines import PYTHON, SECONDS, links, networks, said, users
from thinwire.errors import LabError
from thinwire.tools.lab import Lab, commands, doctor, network, record, verify

pytestmark = [pytest.mark.lab, pytest.mark.processes]

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(total)
print(dist.get_world_size(), total.sum().item())
dist.destroy_process_group()
"""

# Host 1 sends numbers for as long as host 0 takes them; host 0 prints what it has when
# none has come for a while, and again when one comes, and ends.
STREAM = """
import os, socket, time
if os.environ["RANK"] == "0":
    peer, _ = socket.create_server(("", 5000)).accept()
    peer.recv(1)
    print("flows", flush=True)
    peer.settimeout(0.5)
    while True:
        try:
            peer.recv(1)
        except TimeoutError:
            break
    print("stalls", flush=True)
    peer.settimeout(None)
    print("goes on" if peer.recv(1) else "broken", flush=True)
else:
    while True:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    try:
        while True:
            peer.send(b"x")
            time.sleep(0.01)
    except OSError:
        pass
"""


def test_hosts_are_what_was_asked_for_and_nothing_is_left_of_them():
    before = links()
    with Lab(hosts=3, rate="1gbit,100mbit,10mbit") as lab:
        name, there = lab.record.name, networks(lab.record)
        assert len(there) == 4
        assert links() == before
        assert record.find_all().count(lab.record) == 1
        shown = said(lab, "tc", "qdisc", "show", "dev", "eth0")
        rates = [line.split(" rate ")[1].split()[0] for _, line in shown]
        assert rates == ["1Gbit", "100Mbit", "10Mbit"]
        ports = commands.run("tc", "qdisc", "show", pid=lab.record.switch)
        assert all(f"rate {rate} " in ports for rate in rates)
    assert users(there) == []
    assert links() == before
    assert name not in [each.name for each in record.find_all()]


def test_hosts_know_only_the_lab():
    with Lab(hosts=2) as lab:
        routes = [line for _, line in said(lab, "ip", "route")]
        assert routes == [
            f"10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.{host + 1} "
            for host in range(2)
        ]
        assert said(lab, "ip", "-6", "address", "show", "eth0") == []
        # The switch has no address through which a host could reach the machine.
        switch = commands.run("ip", "-j", "address", pid=lab.record.switch)
        assert not any(link.get("addr_info") for link in json.loads(switch))


def test_two_labs_at_once_do_not_meet():
    with Lab(hosts=2) as one, Lab(hosts=2) as two:
        assert one.record.name != two.record.name
        whoami = ["sh", "-c", "echo $RANK of $WORLD_SIZE"]
        for lab in (one, two):
            assert said(lab, *whoami) == [(0, "0 of 2"), (1, "1 of 2")]
        with pytest.raises(LabError, match="choose one with --lab NAME"):
            Lab.find()
        assert Lab.find(one.record.name).record == one.record
        there = networks(one.record)
        one.down()
        assert users(there) == []
        assert said(two, *whoami) == [(0, "0 of 2"), (1, "1 of 2")]


def test_a_lab_that_cannot_be_built_leaves_nothing(monkeypatch):
    there, build = set(), network.build

    def notice(built):
        there.update(networks(built))
        build(built)

    monkeypatch.setattr(network, "build", notice)
    monkeypatch.setattr(network, "_host", lambda *_: ["nonsense"])
    lab = Lab(hosts=2)
    with pytest.raises(LabError, match="nonsense"), lab:
        pass
    assert len(there) == 3
    assert users(there) == []
    assert not lab.record.file.exists()
    assert not lab.record.names.exists()


def test_a_cut_host_stalls_and_goes_on_when_healed():
    heard = {word: threading.Event() for word in ("flows", "stalls", "goes on")}
    with Lab(hosts=2) as lab:

        def tell(host, line):
            heard[line].set()

        def break_and_mend():
            assert heard["flows"].wait(SECONDS)
            lab.cut(1)
            assert network.hosts_cut_off(lab.record) == [1]
            assert heard["stalls"].wait(SECONDS)
            lab.heal(1)
            assert network.hosts_cut_off(lab.record) == []

        breaker = threading.Thread(target=break_and_mend)
        breaker.start()
        outcome = lab.run([*PYTHON, STREAM], tell=tell, timeout=SECONDS)
        breaker.join()
        assert outcome.code == 0
        assert all(event.is_set() for event in heard.values())


@pytest.mark.parametrize("host", [-1, 2])
def test_there_is_no_such_host(host):
    with Lab(hosts=2) as lab, pytest.raises(LabError, match="has 0 to 1"):
        lab.cut(host)


def test_a_message_takes_the_time_of_the_slower_link(monkeypatch):
    monkeypatch.setattr(verify, "_LONG_SECONDS", 0.1)
    with Lab(hosts=3, rate="1gbit,100mbit,1gbit") as lab:
        slow = verify.measure(lab.record, 0, 1)
        assert slow.shape.rate == 10**8
        assert slow.messages[-1].nbytes == 1_000_000
        # Nothing can hurry a message; a busy machine can hold it up for ever.
        assert slow.messages[-1].share > 0.5
        assert slow.alone.share > 0.5
        assert slow.together.share > 0.5
        assert verify.measure(lab.record, 0, 2).messages[-1].share > 0.5


def test_torch_all_reduces_between_hosts(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(ALL_REDUCE)
    with Lab(hosts=2) as lab:
        lines = []
        command = [sys.executable, str(script)]
        outcome = lab.run(
            command, tell=lambda *line: lines.append(line), timeout=SECONDS
        )
    assert outcome.codes == (0, 0), lines
    assert {host: line for host, line in lines if "3000" in line} == {
        0: "2 3000.0",
        1: "2 3000.0",
    }


def test_messages_are_late_where_the_kernel_can_delay_them(monkeypatch):
    if not all(check.there for check in doctor.examine()):
        pytest.skip("this kernel has no netem")
    monkeypatch.setattr(verify, "_LONG_SECONDS", 0.1)
    with Lab(hosts=2, delay="20ms") as lab:
        measured = verify.measure(lab.record)
    assert min(each.measured for each in measured.messages) > 0.02
