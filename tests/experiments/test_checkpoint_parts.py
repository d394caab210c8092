"""Checkpoints that are split into parts and joined again are unchanged."""

import pytest
from experiments.convergence import parts as module


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 4)
    monkeypatch.setattr(module, "MOST_BYTES", 20)
    return module


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / name for name in ("work", "out", "again")]
    for folder in made:
        folder.mkdir()
    return made


def test_parts_are_joined_to_what_they_were(parts, folders):
    work, out, again = folders
    held = {"a.pt": b"0123456789", "b.pt": b"abc", "c.pt": b"abcd"}
    for name, content in held.items():
        (work / name).write_bytes(content)
    assert parts.hand_over(list(work.glob("*.pt")), out) == []
    names = sorted(path.name for path in out.iterdir())
    assert names == ["a.pt.000", "a.pt.001", "a.pt.002", "b.pt.000", "c.pt.000"]
    assert all(path.stat().st_size <= 4 for path in out.iterdir())
    parts.take_over(out, again)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == held


def test_what_does_not_fit_is_left_whole(parts, folders):
    work, out, _ = folders
    (work / "large.pt").write_bytes(b"x" * 21)  # too many bytes
    (work / "long.pt").write_bytes(b"x" * 17)  # too many files, after the small ones
    for name in ("a", "b"):
        (work / f"{name}.pt").write_bytes(b"x")
    left = parts.hand_over(list(work.glob("*.pt")), out)
    assert [path.name for path in left] == ["long.pt", "large.pt"]
    assert sorted(path.name for path in out.iterdir()) == ["a.pt.000", "b.pt.000"]


def test_whole_checkpoints_are_taken_too_and_others_left_alone(parts, folders):
    work, out, _ = folders
    (out / "a.pt").write_bytes(b"whole")
    (out / "a.pt.12345").write_bytes(b"never finished")
    (out / "log.txt").write_text("said")
    assert parts.take_over(out, work) == [work / "a.pt"]
    assert [path.name for path in work.iterdir()] == ["a.pt"]


def test_a_missing_part_is_named(parts, folders):
    work, out, again = folders
    (work / "a.pt").write_bytes(b"0123456789")
    parts.hand_over([work / "a.pt"], out)
    (out / "a.pt.001").unlink()
    with pytest.raises(SystemExit, match=r"a.pt.001 is missing in .*out"):
        parts.take_over(out, again)
    with pytest.raises(SystemExit, match="no folder"):
        parts.take_over(out / "nowhere", again)
