import pytest

from thinwire.tools.lab import commands, doctor, network


def names(checks):
    return [check.what for check in checks if not check.there]


def test_without_root_nothing_of_the_kernel_is_tried(monkeypatch):
    monkeypatch.setattr(doctor, "_is_root", lambda: False)
    assert "root" in names(doctor.examine())
    assert "tbf" not in [check.what for check in doctor.examine()]
    assert any("sudo" in each for each in doctor.missing())


def test_without_iproute2_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(commands, "find", lambda _: None)
    assert {"ip", "tc"} <= set(names(doctor.examine()))
    assert any("install iproute2" in each for each in doctor.missing())


@pytest.mark.lab
@pytest.mark.parametrize("what", ["bridge", "veth", "tbf", "netem"])
def test_what_the_kernel_cannot_do_is_named_with_its_option(monkeypatch, what):
    def refuse(tool, namespace, lines):
        if f" {what} " in f"{' '.join(lines)} ":
            commands.run("ip", "nonsense")

    monkeypatch.setattr(commands, "batch", refuse)
    assert names(doctor.examine()) == [what]
    kept = [each for each in doctor.missing() if what.upper() in each]
    assert bool(kept) == (what != "netem")


@pytest.mark.lab
def test_nothing_is_left_of_an_examination():
    assert doctor.missing() == []
    assert not [name for name in network.existing() if "doctor" in name]
