"""Ray Train: two workers that Ray starts, and its checkpoints."""

import os
import tempfile
from pathlib import Path

import torch

import thinwire
from tests.integrations.launcher import results
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

pytestmark = framework("ray")


def worker(config):
    import ray.train
    import ray.train.torch

    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank = context.get_world_rank()
    model = ray.train.torch.prepare_model(make_model())
    state = thinwire.attach(model, "spardl", density=0.05, warn=False)
    optimizer = adamw(model, state)
    start = 0
    resumed = ray.train.get_checkpoint()
    if resumed is not None:
        with resumed.as_directory() as folder:
            shared = torch.load(f"{folder}/shared.pt")
            model.module.load_state_dict(shared["model"])
            optimizer.load_state_dict(shared["optimizer"])
            start = shared["step"]
            state.load(sorted(Path(folder).glob("thinwire.*.pt")))
    for step in range(start, STEPS):
        loss_of(model, *batch(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 in (SAVED, STEPS):
            with tempfile.TemporaryDirectory() as folder:
                torch.save(state.state_dict(), f"{folder}/thinwire.{rank}.pt")
                if rank == 0:
                    shared = {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "step": step + 1,
                    }
                    torch.save(shared, f"{folder}/shared.pt")
                ray.train.report(
                    {"start": start},
                    checkpoint=ray.train.Checkpoint.from_directory(folder),
                )
        if start == 0:
            die_after(KILLED, step + 1)
    torch.save(parameters_of(model), f"{config['out']}/{rank}.pt")


def fit(folder):
    """What a driver does: start Ray, train, and end Ray."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else it writes a token into the home
    import ray
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        worker,
        train_loop_config={"out": str(folder)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=str(folder / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=1),
        ),
    )
    done = trainer.fit()
    ray.shutdown()
    return done.metrics


def test_a_run_with_a_killed_worker_is_that_of_raw_ddp(tmp_path):
    wanted = results(raw, "spardl", adamw, density=0.05)
    (metrics,) = results(fit, tmp_path, size=1, timeout=150)
    assert metrics["start"] == SAVED
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert same(found, wanted)
