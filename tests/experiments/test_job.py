"""Jobs: a run in a file."""

import json

import pytest
import torch
from experiments.train import job, run
from experiments.train.jobs import main

from tests.experiments.toy_task import Toy
from thinwire.errors import ConfigError


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(job.tasks, "task", lambda *_, **__: Toy())

    def write(**more):
        path = tmp_path / "job.json"
        spec = {"task": "toy", "reduction": {"method": "topk"}, "workers": 2}
        files = {"results": str(tmp_path / "all.jsonl"), "device": "cpu"}
        path.write_text(json.dumps({"spec": spec, **files, **more}))
        return path

    return write


def test_a_finished_job_adds_a_line(write, tmp_path, capsys):
    assert main([str(write(checkpoint=str(tmp_path / "c.pt")))]) == 0
    assert "finished: held-out loss" in capsys.readouterr().out
    (result,) = run.read(tmp_path / "all.jsonl")
    assert result["reduction"]["method"] == "topk"
    assert len(result["history"]["metric"]) == 2
    assert not (tmp_path / "c.pt").exists()


def test_a_finished_job_leaves_its_model(write, tmp_path):
    path = tmp_path / "model.pt"
    assert main([str(write(model=str(path)))]) == 0
    held = torch.load(path, weights_only=True)
    Toy().model().load_state_dict(held)


def test_a_job_without_time_leaves_a_checkpoint_to_go_on_from(write, tmp_path, capsys):
    path = write(checkpoint=str(tmp_path / "c.pt"), seconds=-1.0)
    assert main([str(path)]) == 0
    assert "unfinished" in capsys.readouterr().out
    assert (tmp_path / "c.pt").exists()
    assert not (tmp_path / "all.jsonl").exists()


def test_a_probe_times_steps_and_keeps_nothing(write, tmp_path, capsys):
    assert main([str(write(probe=2))]) == 0
    assert "ms a step" in capsys.readouterr().out
    assert not (tmp_path / "all.jsonl").exists()


def test_a_probe_times_the_recipe_it_was_given(write, capsys):
    spec = {"task": "toy", "workers": 2, "recipe": {"batch": -3}}
    assert main([str(write(probe=2, spec=spec))]) == 1
    assert "batch is -3" in capsys.readouterr().out


def test_a_line_that_was_cut_off_is_left_out_aloud(tmp_path, caplog):
    path = tmp_path / "all.jsonl"
    run.append(path, {"key": "a"})
    with path.open("a") as file:
        file.write('{"key": "b", "resu')
    run.append(path, {"key": "c"})
    assert [result["key"] for result in run.read(path)] == ["a", "c"]
    assert "line 2: cut off" in caplog.text


def test_a_bad_file_is_named(write, tmp_path, capsys):
    assert main([str(write(sped=1))]) == 1
    assert "sped" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no job"):
        job.Job.read(tmp_path / "nothing.json")
