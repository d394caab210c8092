"""A save that is refused on one rank is refused on all, and leaves the last one."""

import json
from pathlib import Path

import pytest
import torch

from tests.hooks.test_restart import start, vectors_in
from tests.hooks.training import given_gradients
from tests.workers import pool
from thinwire.errors import AgreementError, ConfigError

pytestmark = pytest.mark.processes


def save_after_nan(group, folder):
    """Rank 1 has NaN in its residual; the error, and what the folder then has."""
    model, state = start("topk", on_nonfinite="unchecked")
    model(given_gradients(group.rank, 0)).backward()
    state.save(folder, {"step": 1})
    if group.rank == 1:
        for residual in vectors_in(state)["residual"].values():
            residual.fill_(torch.nan)
    try:
        state.save(folder, {"step": 2})
    except ConfigError as error:
        torch.distributed.barrier()
        saves = len(list(Path(folder).glob("save-*")))
        return str(error), saves, state.load(folder)
    return None


def test_a_residual_with_nan_is_not_saved(tmp_path):
    for message, saves, also in pool(2).run(save_after_nan, str(tmp_path)):
        assert "what rank 1 has not delivered" in message
        assert (saves, also) == (1, {"step": 1})


def fails_while_saving(group, folder):
    _, state = start("topk")
    state.save(folder)
    before = json.loads((Path(folder) / "thinwire.json").read_text())
    errors = []
    for also in ({"f": Path}, {"f": lambda: 0}, torch.ones(2), [1], 5):
        try:
            state.save(folder, also)
        except Exception as error:
            errors.append(type(error).__name__)
    torch.distributed.barrier()
    after = json.loads((Path(folder) / "thinwire.json").read_text())
    return errors, before == after, len(list(Path(folder).glob("save-*")))


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    first, second = pool(2).run(fails_while_saving, str(tmp_path))
    assert first[0] == second[0] == ["ConfigError"] * 5
    assert first[1:] == second[1:] == (True, 1)


def without_a_folder(group, folder, lonely):
    _, state = start("topk", timeout=5.0)
    try:
        state.save(None if group.rank == lonely else folder)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("lonely", [0, 1])
def test_a_rank_that_gives_no_folder_fails_all_at_once(tmp_path, lonely):
    found = pool(2).run(without_a_folder, str(tmp_path), lonely)
    assert found[lonely][0] == "TypeError"
    kind, message = found[1 - lonely]
    assert kind == "ConfigError"
    assert f"refused on rank {lonely}: TypeError" in message
    assert not list(tmp_path.glob("*.json"))


def load_own_file_of_another_save(group, folder):
    model, state = start("topk")
    model(given_gradients(group.rank, 0)).backward()
    for each in range(2):  # after the same number of passes
        state.save(f"{folder}/{each}")
    (mine,) = Path(f"{folder}/{group.rank}").rglob(f"rank-{group.rank}-of-2.pt")
    try:
        state.load(mine)
    except AgreementError as error:
        return str(error)
    return None


def test_files_of_different_saves_on_each_rank_are_refused(tmp_path):
    for message in pool(2).run(load_own_file_of_another_save, str(tmp_path)):
        assert "different saves" in message
