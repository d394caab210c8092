"""`thinwire lab`, without hosts; tests/lab has those."""

import json

import pytest

from thinwire.tools.cli import lab_verify, main
from thinwire.tools.lab import doctor, network, record
from thinwire.tools.lab.record import Owner, Record
from thinwire.tools.lab.shaping import Shape
from thinwire.tools.lab.verify import MESSAGES, Measured, Timed


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["lab", *arguments])
    return end.value.code or 0, *capsys.readouterr()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "FOLDER", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--hosts", "0"], "0 hosts"),
        (["up", "--hosts", "2", "--rate", "fast"], "rate is 'fast'"),
        (["up", "--hosts", "3", "--rate", "1gbit,1gbit"], "2 rates for 3 hosts"),
        (["up", "--lab", "My Lab"], "'My Lab'"),
        (["up", "--delay", "20"], "delay is '20'"),
        (["up", "--delay", "20s"], "at most 10s"),
        (["up", "--loss", "60%"], "loss is '60%': give a number from 0 to 50"),
        (["up", "--loss", "0.1"], "loss is '0.1'"),
        (["verify", "--hosts", "1"], "1 hosts: messages need 2 or more"),
        (["verify", "--rate", "1gbit,fast"], "rate is 'fast'"),
        (["run", "--", "true"], "no lab is up"),
        (["down"], "no lab is up"),
        (["cut", "1"], "no lab is up"),
        (["heal", "1"], "no lab is up"),
    ],
)
def test_errors_say_what_and_why(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_labs_are_listed_with_what_became_of_them(capsys, monkeypatch):
    assert "No lab is up" in run(capsys, "list")[1]
    mine, pids = Owner.me(), (1, 2)
    Record("one", (10**9, 10**9), mine, 0.02, 0.001, pids).create()
    Record("two", (10**9, 10**8), Owner(1, "gone"), pids=pids).create()
    Record("four", (10**9, 10**8), mine).create()
    monkeypatch.setattr(network, "hosts_cut_off", lambda _: [1])
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert out.splitlines() == [
        "four: 2 hosts at 1gbit, 100mbit; being built",
        "one: 2 hosts at 1gbit, 20 ms late, 0.1 % lost; cut off: 1",
    ]
    _, _, err = run(capsys, "cut", "0", "--lab", "three")
    assert "there is no lab 'three': there are one" in err


def test_the_doctor_names_what_is_missing(capsys, monkeypatch):
    checks = [
        doctor.Check("ip", True, ""),
        doctor.Check("tbf", False, "a kernel with it"),
        doctor.Check("netem", False, "another kernel", optional=True),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "MISSING  tbf: a kernel with it" in out
    checks[1] = doctor.Check("tbf", True, "")
    assert run(capsys, "doctor")[0] == 0


def measured(share, sustained, burst):
    shape = Shape(10**9, timer=(burst - 2400) * 8e-9)
    assert shape.burst == burst
    nominal = {size: shape.link.transfer(size) for size in MESSAGES}
    timed = [Timed(size, time, share * time) for size, time in nominal.items()]
    alone = Timed(125_000_000, 1.0, 1.05)
    return Measured(shape, tuple(timed), alone, Timed(125_000_000, 1.0, sustained))


@pytest.mark.parametrize(
    ("share", "sustained", "burst", "code", "verdicts"),
    [
        (1.0, 1.05, 12_400, 0, ["100 %  shaped", "holds the rate"]),
        (1.0, 1.05, 20_000, 0, ["unshaped: in the burst", "100 %  shaped"]),
        (0.5, 1.05, 12_400, 1, ["UNSHAPED: 62 % burst", "UNSHAPED: 12.4 % burst"]),
        (1.0, 2.0, 12_400, 1, ["50 % OF THE RATE, all 2"]),
    ],
)
def test_links_that_do_not_hold_are_said_to(
    capsys, monkeypatch, share, sustained, burst, code, verdicts
):
    link = measured(share, sustained, burst)
    monkeypatch.setattr(lab_verify, "verify", lambda *_: link)
    found, out, err = run(capsys, "verify", "--rate", "1gbit")
    assert found == code
    assert "sending messages between hosts: 1gbit (" in err
    assert all(verdict in out for verdict in verdicts)
    assert max(map(len, out.splitlines())) <= 80
    assert "without --delay and --loss" in " ".join(out.split())
    found, out, _ = run(capsys, "verify", "--rate", "1gbit", "--json")
    assert found == code
    (figures,) = json.loads(out)
    assert [each["bytes"] for each in figures["messages"]] == list(MESSAGES)
    assert all(each["shaped"] == (share >= 0.9) for each in figures["messages"])
