"""A training goes on with any number of workers, and from complete saves only."""

import json
import os
import shutil
import signal
import warnings
import zlib
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import thinwire
from tests.hooks.training import (
    SIZES,
    given_gradients,
    gradients_of,
    optimizer_of,
    residual_of,
    step_once,
    wrap,
)
from tests.workers import fresh, pool
from thinwire.errors import ConfigError, PeerError
from thinwire.hooks import saving

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]

STEPS = 3  # after two steps, units are final


def vectors_in(state):
    (entries,) = [v for k, v in state.state_dict().items() if k.startswith("rank ")]
    return {kind: held for kind, held in entries.items() if isinstance(held, dict)}


def vectors_of(state):
    held = vectors_in(state)
    return {kind: {n: t.clone() for n, t in held[kind].items()} for kind in held}


def start(method, **options):
    model = wrap("given")
    return model, thinwire.attach(model, method, density=0.02, **options)


def save(group, folder, how, options):
    """Train and save; what this rank has not delivered."""
    model, state = start(**options)
    for step in range(STEPS):
        model(given_gradients(group.rank, step)).backward()
    if how == "folder":
        state.save(folder, {"step": STEPS})
    elif how == "dcp":
        dcp.save({"app": state, "other": {"w": torch.ones(2)}}, checkpoint_id=folder)
    else:
        Path(folder).mkdir(exist_ok=True)
        torch.save(state.state_dict(), f"{folder}/{group.rank}.pt")
        torch.distributed.barrier()
    return vectors_of(state)


def load(group, folder, how, options, missing="error"):
    """Load, deliver everything, train on; vectors, what a flush delivers, warnings."""
    model, state = start(**options)
    source = sorted(Path(folder).glob("*.pt")) if how == "files" else folder
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        also = state.load(source, missing=missing)
    loaded = vectors_of(state)
    assert also == ({"step": STEPS} if how == "folder" else {})
    for step in range(2):
        model(given_gradients(group.rank, STEPS + step)).backward()
    state.check_replicas()
    means = gradients_of(model)
    again, state = start(**options)
    state.load(source, missing=missing)
    state.flush()
    said = [str(each.message) for each in caught if "missing=" in str(each.message)]
    return loaded, gradients_of(again), said, means


def total(ranks, kind, name):
    """The sum over ranks by their number, in float64: what is in the mean."""
    return sum(rank[kind][name].double() for rank in ranks) / len(ranks)


@pytest.mark.parametrize(
    ("before", "after", "how", "options"),
    [
        (4, 2, "folder", {"method": "topk"}),
        (2, 4, "folder", {"method": "topk", "feedback": "momentum"}),
        (4, 3, "files", {"method": "spardl", "feedback": "momentum"}),
        (3, 4, "dcp", {"method": "s2", "granularity": "row"}),
        (2, 3, "files", {"method": "gtopk", "scope": "model"}),
        (4, 2, "dcp", {"method": "spardl", "teams": 2, "gather": "bruck"}),
        (4, 6, "folder", {"method": "spardl", "nodes": 2}),
        (6, 4, "files", {"method": "topk", "nodes": 2, "feedback": "momentum"}),
    ],
    ids=str,
)
def test_nothing_is_lost_with_another_number_of_ranks(
    tmp_path, before, after, how, options
):
    folder = str(tmp_path / "saved")
    saved = pool(before).run(save, folder, how, options)
    found = pool(after).run(load, folder, how, options)
    exact = {before, after} <= {2, 4}
    loaded = [rank[0] for rank in found]
    for kind in saved[0]:
        for name in SIZES:
            then, now = total(saved, kind, name), total(loaded, kind, name)
            assert then.count_nonzero() > 0
            if exact:
                assert torch.equal(then, now)
            torch.testing.assert_close(then, now, rtol=1e-6, atol=1e-6)
    # Every rank's parameters get what they would have got from all that saved.
    for _, flushed, _, means in found:
        for name in SIZES:
            mean = total(saved, "residual", name)
            torch.testing.assert_close(
                flushed[name].double(), mean, rtol=1e-6, atol=1e-5
            )
            assert torch.equal(means[name], found[0][3][name])


def refused(group, folder, how, options, **load_options):
    model, state = start(**options)
    model(given_gradients(group.rank, 9)).backward()
    before = residual_of(state)
    source = sorted(Path(folder).glob("*.pt")) if how == "files" else folder
    try:
        state.load(source, **load_options)
    except ConfigError as error:
        after = residual_of(state)
        assert all(torch.equal(before[name], after[name]) for name in SIZES)
        return str(error)
    return None


TOPK = {"method": "topk"}


@pytest.mark.parametrize("after", [2, 3, 4])
def test_a_missing_file_is_named_or_dropped_and_reported(tmp_path, after):
    folder = tmp_path / "saved"
    saved = pool(4).run(save, str(folder), "folder", TOPK)
    (lost,) = folder.glob("save-*/rank-1-of-4.pt")
    lost.unlink()
    for message in pool(after).run(refused, str(folder), "folder", TOPK):
        assert "rank 1 of 4" in message
        assert str(lost) in message
        assert "missing='drop'" in message
    found = pool(after).run(load, str(folder), "folder", TOPK, "drop")
    norm = sum(float(t.square().sum()) for t in saved[1]["residual"].values()) ** 0.5
    (said,) = found[0][2]
    assert f"{lost}): residual of norm {norm:.4g}" in said
    del saved[1]
    for name in SIZES:
        kept = total(saved, "residual", name) * 3 / 4
        now = total([rank[0] for rank in found], "residual", name)
        torch.testing.assert_close(kept, now, rtol=1e-6, atol=1e-6)
    assert all(not rank[2] for rank in found[1:])


def save_two(group, folder):
    model, state = start("topk")
    for step in range(2):
        model(given_gradients(group.rank, step)).backward()
        state.save(f"{folder}/{step}")
        torch.save(state.state_dict(), f"{folder}/{step}.{group.rank}.pt")
    torch.distributed.barrier()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("file", ["rank-1-of-2.pt", "also.pt", "thinwire.json"])
def test_damaged_files_are_refused_by_name(tmp_path, damage, file):
    pool(2).run(save_two, str(tmp_path))
    (path,) = (tmp_path / "0").rglob(file)
    damage(path)
    for message in pool(2).run(refused, str(tmp_path / "0"), "folder", TOPK):
        if path.name == "thinwire.json" and not path.exists():
            assert "no complete save" in message
        else:
            assert str(path) in message


def test_files_of_different_saves_are_refused_by_name(tmp_path):
    pool(2).run(save_two, str(tmp_path))
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    # Plain files, of different steps.
    shutil.copy(tmp_path / "0.0.pt", mixed / "0.pt")
    shutil.copy(tmp_path / "1.1.pt", mixed / "1.pt")
    for message in pool(2).run(refused, str(mixed), "files", TOPK):
        assert str(mixed / "0.pt") in message
        assert str(mixed / "1.pt") in message
        assert "mixed set" in message
    # A file that a save has not written.
    (theirs,) = (tmp_path / "0").rglob("rank-1-of-2.pt")
    (mine,) = (tmp_path / "1").rglob("rank-1-of-2.pt")
    shutil.copy(theirs, mine)
    for message in pool(2).run(refused, str(tmp_path / "1"), "folder", TOPK):
        assert str(mine) in message
    (mine,) = (tmp_path / "1").rglob("rank-0-of-2.pt")
    shutil.copy(mine, mixed / "0.pt")
    shutil.copy(theirs, mixed / "1.pt")
    for message in pool(2).run(refused, str(mixed), "files", TOPK):
        assert "different saves" in message


@pytest.mark.parametrize("field", ["save", "file", "also"])
def test_a_manifest_that_names_other_folders_is_refused(tmp_path, field):
    pool(2).run(save_two, str(tmp_path))
    path = tmp_path / "0" / "thinwire.json"
    held = json.loads(path.read_text())
    del held["crc32"]
    if field == "save":
        held["save"] = str(tmp_path / "0" / held["save"])
    else:
        written = held["also"] if field == "also" else held["files"][1]
        written["name"] = f"../{held['save']}/{written['name']}"
    held["crc32"] = zlib.crc32(json.dumps(held, sort_keys=True).encode())
    path.write_text(json.dumps(held))
    for message in pool(2).run(refused, str(tmp_path / "0"), "folder", TOPK):
        assert str(path) in message


def die(path, *_):
    """Instead of writing a file: write a part of it, and be gone."""
    if path.suffix == ".pt":
        path.with_name(path.name + ".unfinished").write_bytes(b"PK half")
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while_saving(group, folder, victim, where):
    """One complete save, then a rank is killed in the middle of the next one."""
    model = wrap()
    state, optimizer = thinwire.attach(model, "topk"), optimizer_of(model)
    losses = []
    for step in range(6):
        losses.append(step_once(model, optimizer, group.rank, step))
        also = {"model": model.module.state_dict(), "step": step + 1}
        if step == 5 and group.rank == victim:
            setattr(saving, where, die)
        if step in (2, 5):
            try:
                state.save(folder, also)
            except PeerError as error:
                return error.ranks
    return None


def resumed(group, folder):
    model = wrap()
    state, optimizer = thinwire.attach(model, "topk"), optimizer_of(model)
    saved = state.load(folder, required=False)
    if saved is not None:
        model.module.load_state_dict(saved["model"])
    first = 0 if saved is None else saved["step"]
    return first, [
        step_once(model, optimizer, group.rank, step) for step in range(first, 8)
    ]


@pytest.mark.parametrize(
    ("victim", "where"), [(1, "_write"), (0, "_write"), (0, "_complete")]
)
def test_a_save_that_was_killed_leaves_the_last_one(tmp_path, victim, where):
    folder = str(tmp_path / "saved")
    outcomes = fresh(2, killed_while_saving, folder, victim, where, lost=[victim])
    assert outcomes[1 - victim].result == (victim,)
    assert len(list(Path(folder).glob("save-*"))) == 2
    whole = pool(2).run(resumed, str(tmp_path / "nothing"))
    for (first, losses), (_, all_losses) in zip(
        pool(2).run(resumed, folder), whole, strict=True
    ):
        assert first == 3
        assert losses == all_losses[3:]
