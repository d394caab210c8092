"""Damaged state dicts: the field is named, on every rank, and nothing has changed."""

import copy
import json

import pytest
import torch

import thinwire
from tests.hooks.training import given_gradients, wrap
from tests.workers import pool
from thinwire.errors import ConfigError

pytestmark = pytest.mark.processes

NAN, INF = float("nan"), float("inf")


def deep(levels=10_000):
    """A dict in a dict in a dict ..."""
    found: dict = {}
    for _ in range(levels):
        found = {"a": found}
    return found


def put(entries, value, kind="residual", name="first"):
    entries[kind] = {**entries[kind], name: value}


def poke(entries, value, kind="residual"):
    changed = entries[kind]["first"].clone()
    changed[7] = value
    put(entries, changed, kind)


def counters(entries, **held):
    entries["counters"] = json.dumps([held])


def setting(key, value):
    return f"{key}={str(value)[:12]}", key, lambda e: e.__setitem__(key, value)


# What it is, what the message names, what it does to the entries of a rank.
DAMAGE = [
    *(setting("scale", value) for value in (NAN, INF, 0.0, -1.0, "1", None, True)),
    *(setting("step", value) for value in (-1, 1.5, True, "3", None, 2**70, [1])),
    *(setting("passes", value) for value in (-1, NAN, False, "3", {}, 10**4000)),
    *(setting(key, value) for key in ("settled", "flushed") for value in (0, "no")),
    *(setting("scope", value) for value in ("buckets", None, ["bucket"])),
    *(setting("density", value) for value in (NAN, 0.0, -0.1, 1.5, "0.1", [0.1])),
    *(setting("units", value) for value in (None, 3, "", "{}", "[[1]]", "[[]]")),
    *(setting("units", value) for value in ('["first"]', "[" * 100_000, '[["first"')),
    *(setting("counters", value) for value in (None, "{}", "[1]", '[{"h": 1.5}]')),
    *(
        setting("counters", value)
        for value in ("[" * 100_000, '[{"h": 1e400}]', "[{},{},{}]")
    ),
    *(setting("sparse", value) for value in ("[" * 100_000, '{"a": {"peak": -1}}')),
    *(setting("residual", value) for value in (None, [], torch.zeros(3), {}, "")),
    ("a bool as counter", "counters", lambda e: counters(e, union=True)),
    ("a peak that is no float32", "counters", lambda e: counters(e, peak=2**40)),
    ("NaN", "residual of first", lambda e: poke(e, NAN)),
    ("infinity", "residual of first", lambda e: poke(e, INF)),
    ("NaN in momentum", "momentum of first", lambda e: poke(e, NAN, "momentum")),
    ("float64", "float64", lambda e: put(e, torch.zeros(3000, dtype=torch.float64))),
    ("int64", "int64", lambda e: put(e, torch.zeros(3000, dtype=torch.int64))),
    ("bfloat16", "bfloat16", lambda e: put(e, torch.zeros(3000, dtype=torch.bfloat16))),
    (
        "complex",
        "complex64",
        lambda e: put(e, torch.zeros(3000, dtype=torch.complex64)),
    ),
    ("cut tensor", "(2999,)", lambda e: put(e, torch.zeros(2999))),
    ("other shape", "(50, 60)", lambda e: put(e, torch.zeros(50, 60))),
    ("sparse tensor", "sparse_coo", lambda e: put(e, torch.zeros(3000).to_sparse())),
    (
        "meta tensor",
        "residual of first",
        lambda e: put(e, torch.zeros(3000, device="meta")),
    ),
    ("a list for a tensor", "residual of first", lambda e: put(e, [0.0] * 3000)),
    ("deep dict", "residual of first", lambda e: put(e, deep())),
    ("lost name", "'first'", lambda e: e["residual"].pop("first")),
    ("name that is no string", "residual", lambda e: put(e, torch.zeros(3), name=3)),
    ("kind that is not known", "velocity", lambda e: e.__setitem__("velocity", {})),
]

# The same for the whole state dict.
WHOLE = [
    ("None", "state dict", lambda s, key: None),
    ("list", "state dict", lambda s, key: [s]),
    ("nothing", "version", lambda s, key: {}),
    ("text as version", "version", lambda s, key: {**s, "version": "1"}),
    ("True as version", "version", lambda s, key: {**s, "version": True}),
    ("entries that are a list", "rank", lambda s, key: {**s, key: [1]}),
    ("deep entries", "units", lambda s, key: {**s, key: deep()}),
    ("no entries", "without any", lambda s, key: {"version": 1}),
    ("a number as key", "key of", lambda s, key: {**s, 5: 1}),
    ("rank 7 of 2", "rank 7 of 2", lambda s, key: {**s, "rank 7 of 2": s[key]}),
    ("two sizes", "mixed", lambda s, key: {**s, "rank 0 of 3": s[key]}),
]


def snapshot(state):
    return copy.deepcopy(state.state_dict())


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def try_all(group, damaged_ranks):
    """Try every row on these ranks; by row: the error of this rank, what changed."""
    model = wrap("given")
    state = thinwire.attach(model, "topk", feedback="momentum")
    for step in range(3):
        model(given_gradients(group.rank, step)).backward()
    saved = snapshot(state)
    # So that a load which goes through would change something.
    model(given_gradients(group.rank, 3)).backward()
    before = snapshot(state)
    (key,) = [key for key in saved if key.startswith("rank ")]
    found = {}
    for row, _, change in [*DAMAGE, *WHOLE]:
        broken: object = {**saved, key: copy.deepcopy(saved[key])}
        if group.rank not in damaged_ranks:
            pass
        elif (row, change) in [(r, c) for r, _, c in WHOLE]:
            broken = change(broken, key)
        else:
            change(broken[key])
        try:
            state.load_state_dict(broken)
        except ConfigError as error:
            found[row] = str(error)
        if not same(before, snapshot(state)):
            found[row] = "it has changed the state"
    state.load_state_dict(saved)
    return found, same(saved, snapshot(state))


@pytest.mark.parametrize("ranks", [[0, 1], [1]], ids=["all", "one of them"])
def test_damage_is_refused_on_every_rank_and_changes_nothing(ranks):
    outcomes = pool(2).run(try_all, ranks)
    for rank, (found, loads) in enumerate(outcomes):
        assert loads
        for row, says, _ in [*DAMAGE, *WHOLE]:
            assert says in found[row], row
            if rank not in ranks:
                assert "refused on rank 1" in found[row]
