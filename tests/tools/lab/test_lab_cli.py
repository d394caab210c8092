"""The commands of `thinwire lab`, on a lab that stays between them."""

import pytest

from tests.tools.lab.machines import namespaces
from thinwire.tools.cli import main
from thinwire.tools.lab import network, record

pytestmark = [pytest.mark.lab, pytest.mark.processes]


def run(capfd, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["lab", *arguments])
    return end.value.code or 0, *capfd.readouterr()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Labs that other tests do not see."""
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    yield
    for each in record.find_all():
        network.remove(each)


def test_a_lab_stays_until_it_is_taken_down(capfd):
    name = record.new_name()
    code, out, _ = run(capfd, "up", "--hosts", "2", "--rate", "1gbit", "--lab", name)
    assert code == 0
    assert f"Lab {name}: 2 hosts at 1gbit" in out
    assert len(namespaces(name)) == 3

    code, out, _ = run(capfd, "run", "--", "sh", "-c", "echo I am $RANK -x")
    assert (code, sorted(out.splitlines())) == (0, ["[0] I am 0 -x", "[1] I am 1 -x"])
    code, _, err = run(capfd, "run", "sh", "-c", "exit $((RANK * 3))")
    assert code == 3
    assert "host 1 failed (3)" in err

    assert run(capfd, "cut", "1") == (0, "", "")
    assert run(capfd, "list")[1] == f"{name}: 2 hosts at 1gbit; cut off: 1\n"
    assert run(capfd, "heal", "1") == (0, "", "")
    assert run(capfd, "list")[1] == f"{name}: 2 hosts at 1gbit\n"

    assert run(capfd, "up", "--lab", name)[0] == 2
    assert run(capfd, "down") == (0, f"Lab {name}: down\n", "")
    assert namespaces(name) == set()


def test_one_of_several_is_chosen(capfd):
    names = sorted(record.new_name() for _ in range(2))
    for name in names:
        assert run(capfd, "up", "--hosts", "1", "--lab", name)[0] == 0
    code, _, err = run(capfd, "down")
    assert code == 2
    assert f"several labs are up ({', '.join(names)})" in err
    assert run(capfd, "down", "--lab", names[0])[1] == f"Lab {names[0]}: down\n"
    assert namespaces(names[0]) == set()
    assert len(namespaces(names[1])) == 2
    assert run(capfd, "down", "--lab", names[1])[0] == 0


def test_down_removes_what_a_killed_lab_left(capfd):
    name = record.new_name()
    run(capfd, "up", "--hosts", "1", "--lab", name)
    record.Record(name, (10**9,), record.Owner(1, "gone")).replace()
    code, out, _ = run(capfd, "down")
    assert code == 0
    assert f"Lab {name}: its process is dead; removed what it left" in out
    assert namespaces(name) == set()
