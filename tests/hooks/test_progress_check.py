"""A run that does not get ahead is warned of, once; a healthy one is not."""

import warnings
from types import SimpleNamespace

import pytest
import torch

import thinwire
from tests.hooks.training import given_gradients, wrap
from tests.workers import pool
from thinwire.hooks.progress_check import FIRST, MOST_EMPTY, MOST_SKIPPED, ProgressCheck

SKIPPED, EMPTY, GROWS = "not finite", "delivered nothing", "keeps growing"


def train(group, method, options, steps, bad=()):
    """The warnings of some steps of which the `bad` ones are not finite."""
    model = wrap("given", bucket_cap_mb=0.005)
    thinwire.attach(model, method, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for step in range(steps):
            model.zero_grad()
            gradients = given_gradients(group.rank, step)
            if step in bad:
                gradients["first"][7] = float("nan")
            model(gradients).backward()
    return [(str(each.message), each.filename) for each in said]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "options", "steps", "bad", "expected"),
    [
        ("topk", {}, 2 * MOST_SKIPPED + 5, range(3, 300), SKIPPED),
        ("topk", {"warn": False}, MOST_SKIPPED + 5, range(3, 300), None),
        ("topk", {}, MOST_SKIPPED + 5, range(3, MOST_SKIPPED), None),
        ("topk", {"feedback": "momentum"}, 8 * FIRST + 2, (), None),
        ("spardl", {}, 8 * FIRST + 2, (), None),
        ("dense", {}, 2 * FIRST, (), None),
    ],
)
def test_rank_0_warns_once(method, options, steps, bad, expected):
    first, second = pool(2).run(train, method, options, steps, bad)
    assert second == []
    if expected is None:
        assert first == []
    else:
        ((message, file),) = first
        assert expected in message
        assert "warn=False" in message
        assert file == __file__


def test_deliveries_that_are_empty_for_long():
    check, said = ProgressCheck(), []
    for delivered in [5, *[0] * (MOST_EMPTY - 1), 5, *[0] * (2 * MOST_EMPTY)]:
        check.note(finite=True, delivered=delivered)
        said.append(check.take_warning())
    (place,) = [i for i, text in enumerate(said) if text]
    assert place == 2 * MOST_EMPTY
    assert EMPTY in said[place]


def units(norm):
    x = SimpleNamespace(whole=lambda: torch.tensor([norm]))
    return SimpleNamespace(
        existing_states=[SimpleNamespace(memory=SimpleNamespace(x=x, saved=True))]
    )


def warned(ratios, *, kept, momentum=0.0):
    """The number of the measurement that warned; the gradient is two long."""
    check = ProgressCheck(momentum)
    for number, ratio in enumerate(ratios):
        check.measured(2.0, units(2.0 * ratio), kept)
        if GROWS in check.take_warning():
            return number
    return None


@pytest.mark.parametrize(
    ("ratios", "kept", "momentum", "expected"),
    [
        ([64, 128, 256, 512, 1024], 0.01, 0.0, 3),
        ([16, 32, 64, 128, 256, 512], 0.01, 0.0, 4),
        ([100, 200, 400, 800, 1600, 3200], 0.01, 0.9, 5),
        ([10, 14, 20, 28, 40, 56], 0.001, 0.0, None),  # not yet long
        ([64, 300, 310, 320, 330], 0.01, 0.0, None),  # follows the gradient
        ([64, 128, 256], 0.01, 0.0, None),
    ],
)
def test_a_residual_that_grows_without_bound(ratios, kept, momentum, expected):
    assert warned(ratios, kept=kept, momentum=momentum) == expected


def test_it_is_measured_in_few_passes():
    check = ProgressCheck()
    found = [number for number in range(2000) if check.measures(number)]
    assert found == [64, 128, 256, 512, 1024]


@pytest.mark.processes
def test_what_is_measured_is_the_gradient():
    for ratio, expected in pool(2).run(measure):
        assert ratio == pytest.approx(expected, rel=1e-6)


def measure(group):
    model = wrap("given", bucket_cap_mb=0.005)
    state = thinwire.attach(model, "topk", density=0.1)
    seen = []
    state.watch_progress()
    state._engine.progress.measured = lambda *each: seen.append(each)  # noqa: SLF001
    for step in range(FIRST + 1):
        model.zero_grad()
        gradients = given_gradients(group.rank, step)
        model(gradients).backward()
    ((norm, _, kept),) = seen
    assert 0.09 < kept < 0.21
    return norm, torch.cat(list(gradients.values())).norm().item()
