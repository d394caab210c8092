import subprocess
import sys
from pathlib import Path

import pytest
import torch
from experiments.tasks import TASKS, task

from tests.experiments import tiny_data
from thinwire.errors import ConfigError

CPU = torch.device("cpu")


def test_unknown_tasks_list_the_known_ones():
    with pytest.raises(ConfigError, match="did you mean 'resnet20-cifar10'") as caught:
        task("resnet-cifar10")
    assert all(name in str(caught.value) for name in TASKS)


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].source])
def test_without_data_a_task_says_where_to_get_it(name):
    with pytest.raises(ConfigError, match=r"--data.*nothing is downloaded") as caught:
        task(name)
    assert "https://" in str(caught.value)


def test_the_recipe_can_be_changed(tmp_path):
    some = task("resnet20-fashion", tmp_path, epochs=2, batch=3)
    assert (some.recipe.epochs, some.recipe.batch) == (2, 3)
    assert some.recipe.momentum == 0.9
    with pytest.raises(ConfigError, match="epochs is 0"):
        task("resnet20-fashion", tmp_path, epochs=0)


def test_missing_data_is_noticed_when_it_is_loaded(tmp_path):
    some = task("resnet20-cifar10", tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no nowhere in .*cs.toronto.edu"):
        some.data(CPU)


def test_characters_of_a_file(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat and the dog did not\n" * 400)
    some = task("characters", file)
    torch.manual_seed(0)
    model, data = some.model(), some.data(CPU)
    (first,) = data.batch(rank=1, ranks=4, epoch=0, step=2, seed=0)
    assert first.shape == (8, 33)
    (again,) = some.data(CPU).batch(rank=1, ranks=4, epoch=0, step=2, seed=0)
    assert torch.equal(first, again)
    (other,) = data.batch(rank=1, ranks=4, epoch=1, step=2, seed=0)
    assert not torch.equal(first, other)
    assert 5 < data.evaluate(model) < 8
    assert model.training
    with pytest.raises(ConfigError, match="is a folder"):
        task("characters", tmp_path).data(CPU)
    file.write_text("short")
    with pytest.raises(ConfigError, match="5 bytes"):
        some.data(CPU)


def test_characters_need_no_data():
    data = task("characters").data(CPU)
    assert data.steps(4) > 100


@pytest.mark.timeout(180)
def test_training_needs_neither_numba_nor_the_command_line(tmp_path):
    tiny_data.fashion(tmp_path)
    code = f"""
import sys
for name in ("numba", "torchvision", "PIL", "typer", "rich", "zstandard"):
    sys.modules[name] = None
import torch
from pathlib import Path
from experiments import tasks
from experiments.train import job, run
task = tasks.task("resnet20-fashion", Path({str(tmp_path)!r}), verify=False, batch=4)
data = task.data(torch.device("cpu"))
print(data.batch(rank=0, ranks=2, epoch=0, step=0, seed=0)[0].shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("torch.Size([4, 1, 32, 32])\n", "")


def test_the_documents_list_every_task_and_source():
    text = (
        Path(__file__).parents[2] / "docs" / "experiments" / "training.md"
    ).read_text()
    for name, entry in TASKS.items():
        assert f"| `{name}` |" in text
        for word in entry.source.home.split() if entry.source else []:
            if word.startswith("https://"):
                assert word in text
