import json
import os
import subprocess
from dataclasses import asdict

import pytest

from thinwire.errors import ConfigError, LabError
from thinwire.tools.lab import record
from thinwire.tools.lab.record import Owner, Record


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "FOLDER", tmp_path / "labs")
    return tmp_path / "labs"


ME = Owner.me()
GONE = Owner(1, "gone")


def test_what_is_written_is_found():
    written = Record("a", (10**9, 10**8), ME, 0.02, 0.001, (7, 8))
    written.create()
    assert record.find_all() == [written]
    Record("a", (1,), ME).replace()
    assert record.find_all() == [Record("a", (1,), ME)]
    written.forget()
    written.forget()
    assert record.find_all() == []


def test_a_name_is_taken_once():
    Record("a", (1,), ME).create()
    with pytest.raises(LabError, match="lab down --lab a"):
        Record("a", (2,), ME).create()


def test_a_record_is_not_read_before_all_of_it_is_written(folder, monkeypatch):
    dump = json.dump

    def meanwhile(data, file):
        dump({}, file)
        file.flush()
        # As another lab does that is built at the same moment.
        assert record.find_all() == []
        file.truncate(0)
        file.seek(0)
        dump(data, file)

    monkeypatch.setattr(json, "dump", meanwhile)
    Record("a", (1,), ME).create()
    assert record.find_all() == [Record("a", (1,), ME)]
    assert [path.name for path in folder.iterdir()] == ["a.json"]


def test_the_record_of_a_lab_that_is_gone_is_removed(folder):
    Record("a", (1,), GONE).create()
    assert record.find_all() == []
    assert list(folder.iterdir()) == []
    Record("a", (1,), GONE).create()
    Record("a", (2,), ME).create()
    assert record.find_all() == [Record("a", (2,), ME)]


def test_somebody_elses_folder_is_not_written_to(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(LabError, match="XDG_RUNTIME_DIR"):
        Record("a", (1,), ME).create()
    assert list(folder.iterdir()) == []
    # Nor is it read: that would let somebody else choose what this user kills.
    (folder / "a.json").write_text(json.dumps(asdict(Record("a", (1,), ME))))
    with pytest.raises(LabError, match="somebody else's"):
        record.find_all()


@pytest.mark.parametrize("name", ["", "A", "a-b", "../a", "x" * 17, "a b"])
def test_names_that_are_no_file_names_are_refused(name):
    with pytest.raises(ConfigError, match="small letters or digits"):
        Record(name, (1,), ME)


@pytest.mark.parametrize("hosts", [0, 251])
def test_too_few_and_too_many_hosts_are_refused(hosts):
    with pytest.raises(ConfigError, match=f"{hosts} hosts: give 1 to 250"):
        Record("a", (1,) * hosts, ME)


def test_addresses_are_told_apart():
    lab = Record("a", (1,) * 250, ME)
    assert len({lab.address(host) for host in range(250)}) == 250


def test_an_owner_is_alive_until_its_process_ends():
    assert Owner.me().lives
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = Owner.of(process.pid)
        assert owner.lives
        process.kill()
    assert not owner.lives


def test_another_process_of_the_same_number_is_not_the_owner():
    assert not Owner(os.getpid(), "1").lives


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"name": "a"})])
def test_a_broken_record_says_what_to_remove(folder, text):
    folder.mkdir()
    (folder / "a.json").write_text(text)
    with pytest.raises(LabError, match="no record of a lab"):
        record.find_all()
