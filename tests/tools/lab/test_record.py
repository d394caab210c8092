import json
import os
import subprocess

import pytest

from thinwire.errors import ConfigError, LabError
from thinwire.tools.lab import record
from thinwire.tools.lab.record import Owner, Record


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "FOLDER", tmp_path / "labs")
    return tmp_path / "labs"


@pytest.mark.parametrize("owner", [None, Owner(17, "123")])
def test_what_is_written_is_found(owner):
    written = Record("a", (10**9, 10**8), owner)
    written.create()
    assert record.find_all() == [written]
    Record("a", (1,)).replace()
    assert record.find_all() == [Record("a", (1,))]
    written.forget()
    written.forget()
    assert record.find_all() == []


def test_a_name_is_taken_once():
    Record("a", (1,)).create()
    with pytest.raises(LabError, match="lab down --lab a"):
        Record("a", (2,)).create()


@pytest.mark.parametrize("name", ["", "A", "a-b", "../a", "x" * 17, "a b"])
def test_names_that_cannot_be_part_of_a_namespace_are_refused(name):
    with pytest.raises(ConfigError, match="small letters or digits"):
        Record(name, (1,))


@pytest.mark.parametrize("hosts", [0, 251])
def test_too_few_and_too_many_hosts_are_refused(hosts):
    with pytest.raises(ConfigError, match=f"{hosts} hosts: give 1 to 250"):
        Record("a", (1,) * hosts)


def test_namespaces_and_addresses_are_told_apart():
    lab = Record("a", (1,) * 250)
    assert len(set(lab.namespaces)) == 251
    assert lab.namespaces[-1] == lab.switch
    assert len({lab.address(host) for host in range(250)}) == 250


def test_an_owner_is_alive_until_its_process_ends():
    assert Owner.me().lives
    assert not Record("a", (1,), Owner.me()).abandoned
    assert not Record("a", (1,)).abandoned
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = Owner.of(process.pid)
        assert owner.lives
        process.kill()
    assert not owner.lives
    assert Record("a", (1,), owner).abandoned


def test_another_process_of_the_same_number_is_not_the_owner():
    assert not Owner(os.getpid(), "1").lives


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"name": "a"})])
def test_a_broken_record_says_what_to_remove(folder, text):
    folder.mkdir()
    (folder / "a.json").write_text(text)
    with pytest.raises(LabError, match=r"thinwire-a-\*"):
        record.find_all()
