"""Ray Train: two workers that Ray starts, and its checkpoints."""

import os
import time
from pathlib import Path

import torch

import thinwire
from tests.integrations.launcher import EXAMPLES, results, script
from tests.integrations.tasks import (
    KILLED,
    SAVED,
    STEPS,
    adamw,
    batch,
    die_after,
    framework,
    loss_of,
    make_model,
    parameters_of,
    raw,
    same,
)

pytestmark = framework("ray", seconds=300)


RECORDED = "ray/run/checkpoint_manager_snapshot.json"


def worker(config):
    import ray.train
    from examples import ray_spardl
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(make_model())
    state = thinwire.attach(model, "spardl", density=0.05, warn=False)
    optimizer = adamw(model, state)
    saved, start = ray_spardl.load(state), 0
    if saved is not None:
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    for step in range(start, STEPS):
        loss = loss_of(model, *batch(rank, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == SAVED:
            held = {"model": model.module.state_dict()}
            held["optimizer"] = optimizer.state_dict()
            ray_spardl.save(state, {**held, "step": step + 1}, loss.item())
        if start == 0 and step + 1 == KILLED:
            # Ray looks for what workers have reported once in a while.
            while not (Path(config["out"]) / RECORDED).exists():
                time.sleep(0.05)
            die_after(KILLED, step + 1)
    found = parameters_of(model)
    torch.save({"start": start, "parameters": found}, f"{config['out']}/{rank}.pt")


def drive(folder):
    """Start Ray once, which takes long; train, and run the example."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else it writes a token into the home
    import ray
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    TorchTrainer(
        worker,
        train_loop_config={"out": str(folder)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=str(folder / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    ).fit()
    said = script(EXAMPLES / "ray_spardl.py", folder)
    ray.shutdown()
    return said


def test_a_run_with_a_killed_worker_is_that_of_raw_ddp(tmp_path):
    wanted = results(raw, "spardl", adamw, density=0.05)
    (said,) = results(drive, tmp_path, size=1, timeout=270)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert [rank["start"] for rank in found] == [SAVED, SAVED]
    assert same([rank["parameters"] for rank in found], wanted)
    assert "'step': 20" in said
