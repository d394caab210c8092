from pathlib import Path

import pytest

from tests.tools.lab.machines import network, users
from thinwire.errors import LabError
from thinwire.tools.lab import Lab, commands, doctor, namespaces
from thinwire.tools.lab.doctor import Check
from thinwire.tools.lab.namespaces import Holder


def names(checks):
    return [check.what for check in checks if not check.there]


@pytest.mark.parametrize("tool", ["ip", "tc", "unshare"])
def test_a_missing_tool_is_asked_for_by_its_package(monkeypatch, tool):
    find = commands.find
    monkeypatch.setattr(
        commands, "find", lambda wanted: None if wanted == tool else find(wanted)
    )
    assert tool in names(doctor.examine())
    package = "util-linux" if tool == "unshare" else "iproute2"
    assert f"{tool}: install {package}" in doctor.missing()
    # Nothing of the kernel is tried without it.
    assert "tbf" not in [check.what for check in doctor.examine()]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "Ubuntu 24.04"),
        ("kernel/unprivileged_userns_clone", "0", "userns_clone=1"),
        ("user/max_user_namespaces", "0", "max_user_namespaces=10000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "0", "sudo"),
        (None, "", "this user may make none: run it with sudo"),
        ("container", "", "--privileged"),
    ],
)
def test_who_forbids_namespaces_is_named_with_the_remedy(
    monkeypatch, tmp_path, file, text, said
):
    def refuse(*_):
        raise LabError("not permitted")

    monkeypatch.setattr(Holder, "start", refuse)
    monkeypatch.setattr(commands, "find", lambda tool: tool)
    monkeypatch.setattr(doctor, "privileged", lambda: False)
    monkeypatch.setattr(doctor, "_SYS", tmp_path)
    monkeypatch.setattr(doctor, "_CONTAINER_FILES", [tmp_path / "container"])
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(f"{text}\n")
    (missing,) = doctor.missing()
    assert missing.startswith("namespaces: ")
    assert said in missing


@pytest.mark.lab
@pytest.mark.parametrize("what", ["bridge", "veth", "tbf", "netem"])
def test_what_the_kernel_cannot_do_is_named_with_its_option(monkeypatch, what):
    batch = commands.batch

    def refuse(tool, pid, lines):
        # One kernel has netem, the next one has not.
        if "netem" in lines[0] and what != "netem":
            return
        batch(tool, pid, ["nonsense"] if f" {what} " in f"{lines[0]} " else lines)

    monkeypatch.setattr(commands, "batch", refuse)
    assert names(doctor.examine()) == [what]
    kept = [each for each in doctor.missing() if what.upper() in each]
    assert bool(kept) == (what != "netem")


@pytest.mark.lab
def test_nothing_is_left_of_an_examination(monkeypatch):
    there, start = set(), Holder.start

    def notice(*given):
        made = start(*given)
        there.update(map(network, (*made.hosts, made.switch)))
        return made

    monkeypatch.setattr(Holder, "start", notice)
    assert doctor.missing() == []
    assert len(there) == 2
    assert users(there) == []


def test_delay_and_loss_are_refused_before_anything_is_made(monkeypatch):
    lacking = [Check("tbf", True, ""), Check("netem", False, "modprobe it", True)]
    monkeypatch.setattr(doctor, "examine", lambda: lacking)
    for given in ({"delay": "20ms"}, {"loss": "0.1%"}):
        lab = Lab(2, **given)
        with pytest.raises(LabError, match=r"no delay and no loss .* modprobe it"):
            lab.up()
        assert not lab.record.file.exists()


def test_who_may_make_namespaces_is_read_from_the_capabilities(monkeypatch, tmp_path):
    read = Path.read_text
    status = tmp_path / "status"
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path: read(status if str(path) == "/proc/self/status" else path),
    )
    for given, may in (("1ffffffffff", True), ("201000", True), ("1000", False)):
        status.write_text(f"Name:\tpython\nCapEff:\t{given}\n")
        assert namespaces.privileged() == may
    status.write_text("Name:\tpython\n")
    assert not namespaces.privileged()
