"""The commands of `thinwire lab`, on a lab that stays between them."""

import os
import signal

import pytest

from tests.tools.lab.machines import eventually, networks, users
from thinwire.tools.cli import main
from thinwire.tools.lab import Lab, record

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
        Lab.find(each.name).down()


def test_a_lab_stays_until_it_is_taken_down(capfd):
    name = record.new_name()
    code, out, _ = run(capfd, "up", "--hosts", "2", "--rate", "1gbit", "--lab", name)
    assert code == 0
    assert f"Lab {name}: 2 hosts at 1gbit" in out
    (found,) = record.find_all()
    there = networks(found)
    assert len(there) == 3

    code, out, _ = run(capfd, "run", "--", "sh", "-c", "echo I am $RANK -x")
    assert (code, sorted(out.splitlines())) == (0, ["[0] I am 0 -x", "[1] I am 1 -x"])
    code, _, err = run(capfd, "run", "sh", "-c", "exit $((RANK * 3))")
    assert code == 3
    assert "rank 1 failed (3)" in err

    show = ["sh", "-c", "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE"]
    code, out, _ = run(capfd, "run", "--workers-per-host", "2", "--", *show)
    assert code == 0
    assert sorted(out.splitlines()) == [f"[{r}] {r % 2} of 2" for r in range(4)]

    assert run(capfd, "cut", "1") == (0, "", "")
    assert run(capfd, "list")[1] == f"{name}: 2 hosts at 1gbit; cut off: 1\n"
    assert run(capfd, "heal", "1") == (0, "", "")
    assert run(capfd, "list")[1] == f"{name}: 2 hosts at 1gbit\n"

    assert run(capfd, "up", "--lab", name)[0] == 2
    assert run(capfd, "down") == (0, f"Lab {name}: down\n", "")
    assert users(there) == []


def test_one_of_several_is_chosen(capfd):
    names = sorted(record.new_name() for _ in range(2))
    for name in names:
        assert run(capfd, "up", "--hosts", "1", "--lab", name)[0] == 0
    code, _, err = run(capfd, "down")
    assert code == 2
    assert f"several labs are up ({', '.join(names)})" in err
    one, two = (networks(each) for each in record.find_all())
    assert run(capfd, "down", "--lab", names[0])[1] == f"Lab {names[0]}: down\n"
    assert users(one) == []
    assert users(two) != []
    assert run(capfd, "down", "--all")[0] == 0
    assert users(two) == []


def test_nothing_is_left_of_a_lab_whose_process_was_killed(capfd):
    name = record.new_name()
    run(capfd, "up", "--hosts", "2", "--lab", name)
    (found,) = record.find_all()
    there = networks(found)
    os.kill(found.owner.pid, signal.SIGKILL)
    assert eventually(lambda: users(there) == [])
    assert "No lab is up" in run(capfd, "list")[1]
    assert not found.file.exists()
    assert run(capfd, "up", "--hosts", "1", "--lab", name)[0] == 0
