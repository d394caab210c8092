import json
import sys
from pathlib import Path

import pytest
from experiments.tasks import TASKS
from experiments.train import command as train
from experiments.train import launched, tensorboard
from experiments.train import options as train_options

from tests.experiments import tiny_data

SMALL = ["--workers", "2", "--batch", "100", "--epochs", "2", "--device", "cpu"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        train.main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return end.value.code or 0, " ".join(out.split()), " ".join(err.split())


@pytest.fixture
def ratings(tmp_path):
    rows = ("::".join(map(str, row)) for row in tiny_data.rating_rows())
    (tmp_path / "ratings.dat").write_text("\n".join(rows))
    return ["--task", "ncf-ratings", "--data", str(tmp_path), *SMALL]


def test_a_run_shows_and_writes_its_result(capsys, tmp_path, ratings):
    out = tmp_path / "out"
    file = tmp_path / "result.json"
    options = ["--method", "topk", "--density", 0.1, "--out", out, "--json", file]
    code, shown, progress = run(capsys, *ratings, *options)
    assert code == 0
    result = json.loads(file.read_text())
    (line,) = (out / "results.jsonl").read_text().splitlines()
    assert json.loads(line) == result
    assert not list(out.glob("*.pt"))  # it is finished
    assert result["workers"] == 2
    assert result["epochs"] == 2
    assert result["reduction"]["density"] == 0.1
    assert result["recipe"] == {"batch": 100, "epochs": 2}
    assert "training with topk" in progress
    assert "epoch 2: loss" in progress
    assert "epoch 2: loss" not in shown
    assert "ncf-ratings, topk, 2 virtual workers" in shown
    assert f"hit rate at 10, % {result['result']:.2f}" in shown
    assert f"{result['parameters']:,}" in shown
    assert "bit-identical" in shown


def test_a_run_that_runs_out_of_time_is_kept_and_resumed(capsys, tmp_path, ratings):
    out = ["--out", tmp_path / "out"]
    whole = tmp_path / "whole.json"
    assert run(capsys, *ratings, "--json", whole)[0] == 0
    code, shown, _ = run(capsys, *ratings, *out, "--seconds", 1e-9)
    assert code == 0
    assert "Time was up: the run is kept in" in shown
    code, _, err = run(capsys, *ratings, *out)
    assert code == 2
    assert "pass --resume" in err
    file = tmp_path / "resumed.json"
    assert run(capsys, *ratings, *out, "--resume", "--json", file)[0] == 0
    sums = [json.loads(f.read_text())["history"]["checksum"] for f in (whole, file)]
    assert sums[0] == sums[1]
    # Finished: what is resumed again is the result.
    again = tmp_path / "again.json"
    assert run(capsys, *ratings, *out, "--resume", "--json", again)[0] == 0
    assert json.loads(again.read_text()) == json.loads(file.read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "resnet"], "unknown task 'resnet'"),
        (["--task", "resnet20-cifar10"], "cs.toronto.edu"),
        (["--data", "/nowhere"], "there is no nowhere"),
        (["--method", "top-k"], "unknown method 'top-k'"),
        (["--density", "2"], "density is 2"),
        (["--codec", "zip"], "unknown codec 'zip'"),
        (["--feedback", "memory"], "memory"),
        (["--sparse", "dense"], "dense"),
        (["--option", "teams"], "NAME=VALUE"),
        (["--option", "crews=2"], "crews"),
        (["--workers", "0"], "0 workers"),
        (["--seed", "-1"], "seed is -1"),
        (["--seed", "4294967296"], "seed is 4294967296"),
        (["--epochs", "0"], "epochs is 0"),
        (["--batch", "0"], "batch is 0"),
        (["--batch", "4000"], "do not fill one batch"),
        (["--learning-rate", "-1"], "learning_rate is -1"),
        (["--warmup-densities", "a,b"], "--warmup-densities 'a,b'"),
        (["--warmup-densities", "2"], "density of 2.0"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--resume"], "--resume needs"),
        (["--tensorboard"], "--tensorboard needs"),
        (["--seconds", "0"], "0.0 seconds"),
        (["--json", "/nowhere/a.json"], "no folder /nowhere"),
    ],
)
def test_bad_input_is_refused(capsys, ratings, options, message):
    code, _, err = run(capsys, *ratings, *options)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_unknown_tasks_list_the_tasks(capsys):
    _, _, err = run(capsys, "--task", "nonsense")
    assert all(name in err for name in TASKS)


def test_options_are_numbers_where_they_can_be():
    parsed = train_options.parsed_options(
        ["teams=2", "sum=tree", "exact=true", "x=0.5"]
    )
    assert parsed == {"teams": 2, "sum": "tree", "exact": True, "x": 0.5}


@pytest.fixture
def torchrun(monkeypatch):
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name, value in zip(names, ("1", "3", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)


def test_without_torchrun_workers_are_virtual():
    assert not launched.launched()
    assert launched.leads()
    assert train_options.worker_count(None, virtual=True) == 8


@pytest.mark.usefixtures("torchrun")
def test_torchrun_says_how_many_workers_there_are(capsys, ratings):
    assert launched.launched()
    assert not launched.leads()
    assert train_options.worker_count(None, virtual=False) == 3
    assert train_options.worker_count(3, virtual=False) == 3
    _, _, err = run(capsys, *ratings)
    assert "--workers 2, but torchrun has started 3" in err
    _, _, err = run(capsys, *ratings, "--virtual")
    assert "--virtual under torchrun" in err


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_real_processes_give_the_parameters_of_virtual_workers(
    capfd, tmp_path, ratings, monkeypatch
):
    from torch.distributed.run import main as torchrun

    options = [*ratings, "--method", "topk", "--epochs", "1"]
    virtual, real = tmp_path / "virtual.json", tmp_path / "real.json"
    assert run(capfd, *options, "--json", virtual)[0] == 0
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = ["--standalone", "--nproc-per-node", "2", "-m", "experiments.train"]
    torchrun([*arguments, *options, "--json", str(real)])
    assert "2 processes" in capfd.readouterr().out
    sums = [json.loads(f.read_text())["history"]["checksum"] for f in (virtual, real)]
    assert sums[0] == sums[1]


class Writer:
    def __init__(self, folder):
        self.folder, self.scalars = Path(folder), []
        WRITERS.append(self)

    def add_text(self, name, text, step):
        self.text = text

    def add_scalar(self, name, value, step):
        self.scalars.append((name, step))

    def flush(self):
        self.flushed = True


WRITERS: list[Writer] = []


def test_curves_for_tensorboard(capsys, tmp_path, ratings, monkeypatch):
    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    out = tmp_path / "out"
    assert run(capsys, *ratings, "--out", out, "--tensorboard")[0] == 0
    (writer,) = WRITERS
    assert writer.folder.parent == out / "tensorboard"
    assert '"task":"ncf-ratings"' in writer.text
    assert writer.flushed
    names = {"loss", "metric", "bytes_per_step", "residual_norm"}
    assert {(name, epoch) for name in names for epoch in (1, 2)} <= set(writer.scalars)


def test_without_tensorboard_there_is_a_message(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(tensorboard.ConfigError, match=r"thinwire\[train\]"):
        tensorboard.TensorBoard(tmp_path)
