"""Units of reduction: the pieces of buckets, and the state that is carried over."""

import copy

import pytest
import torch

from thinwire import catalog
from thinwire.errors import ConfigError
from thinwire.hooks.units import BucketPlan, Span, Units
from thinwire.layout import Layout

LAYOUT = Layout(("a", "b", "c", "d"), ((2, 2), (3,), (), (5,)))
ELEMENTS = {"a": 4, "b": 3, "c": 1, "d": 5, "rows": 9, "frozen": 7}


def pick(*names):
    shapes = dict(zip(LAYOUT.names, LAYOUT.shapes, strict=True))
    return Layout(names, tuple(shapes[name] for name in names))


def test_units_that_are_buckets_have_one_span_each():
    plan = BucketPlan.draw(
        [pick("d", "c"), pick("b", "a")], [("d", "c"), ("b", "a")], ELEMENTS
    )
    assert plan.spans == ((Span(0, 0, 6),), (Span(1, 0, 7),))
    assert plan.completes == ((0,), (1,))


def test_neighbours_in_a_bucket_are_joined():
    plan = BucketPlan.draw(
        [pick("d", "c", "b", "a")], [("d", "c"), ("b", "a")], ELEMENTS
    )
    assert plan.spans == ((Span(0, 0, 6), Span(1, 0, 7)),)
    assert plan.completes == ((), (0,))


def test_units_across_buckets_wait_for_the_last_piece():
    buckets = [("a", "b"), ("rows",), ("c", "d")]
    plan = BucketPlan.draw([pick("a", "d"), pick("b", "c")], buckets, ELEMENTS)
    assert plan.spans[0] == (Span(0, 0, 4), Span(2, 1, 6))
    assert plan.spans[1] == (Span(0, 4, 7), Span(2, 0, 1))
    assert plan.completes == ((), (), (0, 1))


def test_what_was_frozen_later_is_stepped_over():
    plan = BucketPlan.draw([pick("a", "b")], [("a", "frozen", "b")], ELEMENTS)
    assert plan.spans == ((Span(0, 0, 4), Span(0, 11, 14)),)


def test_what_ddp_does_not_reduce_is_an_error():
    with pytest.raises(ConfigError, match=r"'d'.*frozen when the model was wrapped"):
        BucketPlan.draw([pick("a", "d")], [("a",)], ELEMENTS)


@pytest.mark.parametrize("feedback", ["residual", "momentum"])
def test_regrouping_carries_vectors_by_name(feedback):
    reducer = catalog.reducer("topk", feedback=feedback)
    units = Units(reducer, LAYOUT, torch.device("cpu"))
    for n, vector in enumerate(units.states[0].memory.saved.values()):
        vector.whole().copy_(torch.arange(13.0) + 20 * n)
    units.states[0].memory.scale = 8.0
    units.states[0].step = 5
    before = copy.deepcopy(units.vectors())
    units.settle([("d",), ("b", "a"), ("c",)])
    assert [state.layout.names for state in units.states] == [
        ("d",),
        ("b", "a"),
        ("c",),
    ]
    assert {(state.memory.scale, state.step) for state in units.states} == {(8.0, 5)}
    after = units.vectors()
    assert before.keys() == after.keys() == {"residual", feedback}
    for kind, held in before.items():
        assert all(torch.equal(held[name], after[kind][name]) for name in LAYOUT.names)
    assert units.settled


def test_nothing_is_allocated_before_it_is_needed():
    units = Units(catalog.reducer("dense"), LAYOUT, torch.device("cpu"))
    units.settle([("d",), ("b", "a", "c")])
    assert not units.has_states
    assert units.vectors() == {}
    assert len(units.states) == 2
    assert units.has_states
