"""State dicts of thinwire.AdamW: checkpoint libraries, hooks, changes in place."""

import copy

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import thinwire
from tests.optim.given import Source, Training, assert_same, parameters
from thinwire.errors import ConfigError


class Holder(nn.Module):
    """A model whose parameters have names, as checkpoint libraries want it."""

    def __init__(self, params):
        super().__init__()
        self.params = nn.ParameterList(params)


def loaded_by_dcp(training, folder):
    """A training that continues from files of torch.distributed.checkpoint."""
    held = Holder(training.params)
    saved = {"optimizer": get_optimizer_state_dict(held, training.optimizer)}
    dcp.save(saved, checkpoint_id=folder, no_dist=True)
    again = Training(parameters(), known=training.source is not None)
    again.random.set_state(training.random.get_state())
    for mine, theirs in zip(again.params, training.params, strict=True):
        mine.data.copy_(theirs)
    held = Holder(again.params)
    template = {"optimizer": get_optimizer_state_dict(held, again.optimizer)}
    dcp.load(template, checkpoint_id=folder, no_dist=True)
    set_optimizer_state_dict(held, again.optimizer, template["optimizer"])
    return again


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("known", [False, True], ids=["grad", "state"])
@pytest.mark.parametrize("density", [0.1, 1], ids=["sparse", "dense"])
def test_distributed_checkpoints_keep_waiting_counts_and_decay(
    known, density, tmp_path
):
    training = Training(parameters(), known=known)
    for _ in range(5):
        training.draw(density)
        training.optimizer.step()
    again = loaded_by_dcp(training, tmp_path)
    for later in (density, 0.1, 1, 0.1):
        for each in (training, again):
            each.draw(later)
            each.optimizer.step()
    assert_same(training.values(), again.values())


def stepped(training, count=3):
    for _ in range(count):
        training.draw()
        training.optimizer.step()
    return training


def test_hooks_may_replace_a_state_dict_and_see_the_result():
    """Both in float32, not as torch has rounded it to the parameter's dtype."""
    training = stepped(Training(parameters(torch.bfloat16), known=False))
    exact, seen = 1.0 + 2.0**-20, []

    def replace(_, state_dict):
        changed = copy.deepcopy(state_dict)
        changed["state"][0]["exp_avg"].fill_(exact)
        return changed

    def look(optimizer):
        seen.append(optimizer.state[training.params[0]]["exp_avg"].clone())

    optimizer = training.optimizer
    optimizer.register_load_state_dict_pre_hook(replace)
    optimizer.register_load_state_dict_post_hook(look)
    for _ in range(2):
        optimizer.load_state_dict(optimizer.state_dict())
    assert len(seen) == 2
    for each in (*seen, optimizer.state[training.params[0]]["exp_avg"]):
        assert (each == exact).all()


def test_a_step_that_is_written_in_place_counts():
    """As by a library that loads into the tensors of a state."""
    training = stepped(Training(parameters(), known=False))
    (state, *_) = training.optimizer.state.values()
    state["step"].fill_(10.0)
    stepped(training, 1)
    assert state["step"] == state["delivered_at"].max() == 11.0


def test_the_state_of_another_model_is_refused():
    """Every element would count as delivered, which is Adam on sums of steps."""
    names = dict(enumerate(parameters()))
    with pytest.raises(ConfigError, match="knows none of these parameters"):
        thinwire.AdamW(parameters(), state=Source(names))
    with pytest.raises(ConfigError, match="state is a Linear"):
        thinwire.AdamW(parameters(), state=nn.Linear(2, 2))
    half = Source({str(i): p for i, p in names.items() if i < 3})
    thinwire.AdamW(names.values(), state=half)
    thinwire.AdamW([{"params": []}], state=half)
