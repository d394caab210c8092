"""What callbacks of all frameworks share."""

import pytest

import thinwire
from tests.hooks.training import optimizer_of, step_once, wrap
from tests.workers import pool
from thinwire import ConfigError
from thinwire.integrations.attachment import Attachment

pytestmark = pytest.mark.processes


def test_there_is_no_state_before_training():
    attachment = Attachment("topk", {})
    attachment.end()
    assert not attachment.begun
    with pytest.raises(ConfigError, match="when training begins"):
        _ = attachment.state


def begin_again(group):
    attachment = Attachment("topk", {"density": 0.05, "clip": 0.5})
    model, other = wrap(), wrap()
    state = attachment.begin(model, clip=1.0)
    step_once(model, optimizer_of(model), group.rank, 0)
    assert attachment.begin(model, clip=1.0) is state
    assert attachment.metrics()["thinwire/steps"] == 1.0
    # Another model: the state of the first is closed.
    attachment.begin(other, clip=1.0)
    assert attachment.metrics()["thinwire/steps"] == 0.0
    with pytest.raises(thinwire.ThinwireError, match="closed"):
        state.metrics()
    attachment.end()


def test_a_state_lives_until_there_is_another_model():
    pool(2).run(begin_again)


def refused(group, options):
    attachment = Attachment("topk", options)
    with pytest.raises(ConfigError) as caught:
        attachment.begin(wrap())
    assert not attachment.begun
    return str(caught.value)


@pytest.mark.parametrize("options", [{"density": 2.0}, {"scope": "layer"}])
def test_wrong_options_are_refused_when_training_begins(options):
    (value,) = options.values()
    for message in pool(2).run(refused, options):
        assert str(value) in message
