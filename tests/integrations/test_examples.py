"""The examples run as they say, and go on from what they save; Ray's in test_ray."""

import pytest

from tests.integrations.launcher import EXAMPLES, results, script
from tests.integrations.tasks import framework


def marked(module, *rest):
    marks = framework(module)
    return pytest.param(*rest, marks=marks, id=rest[0])


@pytest.mark.parametrize(
    ("name", "resume", "says"),
    [
        marked("accelerate", "accelerate_spardl", "--resume", "bit-identical"),
        marked("transformers", "transformers_spardl", "--resume", "train_loss"),
        marked(
            "lightning",
            "lightning_spardl",
            "--resume=checkpoint/last.ckpt",
            "bit-identical",
        ),
    ],
)
def test_it_trains_saves_and_goes_on(tmp_path, name, resume, says):
    path = EXAMPLES / f"{name}.py"
    first, _ = results(script, path, tmp_path)
    assert says in first
    second, _ = results(script, path, tmp_path, resume, "--steps", "40")
    assert says in second


@pytest.mark.parametrize("name", [marked("torch", "gpu_spardl")])
def test_a_script_for_gpus_trains_on_the_cpu_too(tmp_path, name):
    said, _ = results(script, EXAMPLES / f"{name}.py", tmp_path)
    assert "bit-identical" in said
