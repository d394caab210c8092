"""A run that resumes its optimizer without its residuals: one warning, on rank 0."""

import io
import warnings

import pytest
import torch
from torch import nn

import thinwire
from tests.hooks.training import step_once, wrap
from tests.workers import pool
from thinwire.hooks.resumed import LOST, is_resumed

KINDS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "nesterov": lambda params: torch.optim.SGD(
        params, lr=0.1, momentum=0.9, nesterov=True
    ),
    "adamw": torch.optim.AdamW,
    "fused": lambda params: torch.optim.AdamW(params, fused=True),
    "foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    "rmsprop": torch.optim.RMSprop,
    "thinwire": thinwire.AdamW,
}


def stepped(kind, steps, model=None):
    model = model or nn.Linear(3, 2)
    optimizer = KINDS[kind](model.parameters())
    for _ in range(steps):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    return model, optimizer


def found(model, optimizer):
    return is_resumed(optimizer, frozenset(map(id, model.parameters())))


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [2, 3, 20])
def test_a_loaded_state_is_known_from_one_made_here(kind, steps):
    model, optimizer = stepped(kind, steps)
    assert not found(model, optimizer)
    other, resumed = stepped(kind, 0)
    assert not found(other, resumed)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    assert found(other, resumed)
    assert not found(model, resumed)  # of other parameters


def test_sgd_steps_that_leave_no_state_are_not_meant():
    model = nn.Linear(3, 2)
    assert not found(model, torch.optim.SGD(model.parameters(), lr=0.1))


def checkpoint(group, kind, folder):
    model = wrap()
    state = thinwire.attach(model, "topk", warn=False)
    optimizer = KINDS[kind](model.parameters())
    for step in range(3):
        step_once(model, optimizer, group.rank, step)
    state.save(folder, {"optimizer": optimizer.state_dict()})
    return None


def resume(group, kind, folder, how, options):
    """What is said by a run that loads its optimizer, and its residuals or not."""
    model = wrap()
    optimizer = KINDS[kind](model.parameters())
    if how == "dense first":
        for step in range(3):
            step_once(model, optimizer, group.rank, step)
    state = thinwire.attach(model, "topk", **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if how in ("optimizer", "both"):
            saved = thinwire_saved(folder)
            optimizer.load_state_dict(saved)
        if how == "both":
            state.load(folder)
        if how == "nothing saved yet":
            state.load(folder + "-none", required=False)
        for step in range(3, 6):
            step_once(model, optimizer, group.rank, step)
    return [w.filename == said[0].filename for w in said if LOST in str(w.message)]


def thinwire_saved(folder):
    from pathlib import Path

    (path,) = Path(folder).glob("save-*/also.pt")
    return torch.load(path)["optimizer"]


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["sgd", "adamw", "thinwire"])
@pytest.mark.parametrize(
    ("how", "options", "count"),
    [
        ("optimizer", {}, 1),
        ("optimizer", {"warn": False}, 0),
        ("optimizer", {"feedback": "none"}, 0),
        ("optimizer", {"density": 1.0}, 0),
        ("both", {}, 0),
        ("dense first", {}, 0),
        ("nothing saved yet", {}, 0),
    ],
)
def test_rank_0_warns_of_residuals_that_were_not_loaded(
    tmp_path, kind, how, options, count
):
    folder = str(tmp_path / "saved")
    pool(2).run(checkpoint, kind, folder)
    first, second = pool(2).run(resume, kind, folder, how, options)
    assert len(first) == count
    assert second == []
