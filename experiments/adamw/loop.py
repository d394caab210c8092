"""Real processes, trained as users write it: accumulation, `no_sync`, clipping, AdamW.

    torchrun --standalone --nproc-per-node 2 -m experiments.adamw.loop \
        --data DATA/tiny-shakespeare

Runs what is missing in experiments/adamw/processes.jsonl for so many processes, one
after the other, on the processor: a small GPT, 600 steps of two micro-batches.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from experiments import tasks
from experiments.tasks.base import Data, Task
from experiments.train import launched
from experiments.train.clipping import Clipped
from experiments.train.processes import dense_bytes
from experiments.train.replicas import seed_of
from experiments.train.run import append, read

RESULTS = Path(__file__).resolve().with_name("processes.jsonl")
TASK = "small-shakespeare"
MICRO = 2  # batches that are accumulated before a step
_SEQUENCES = 32  # of all processes in a step
_BOUND = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A run: how gradients are reduced, and where they are clipped.

    `clip` is "mean" (`clip_grad_norm_` after backward), "worker" (each worker's own
    gradient, to 1/sqrt(P) of the bound, before it is remembered), "attach" (the option
    of `thinwire.attach`) or "none". `optimizer` is a recipe's: "adamw" fits the method.
    """

    method: str = "dense"
    density: float = 0.01
    clip: str = "mean"
    optimizer: str = "adamw"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def label(self) -> str:
        """What a table calls it."""
        kept = "" if self.method == "dense" else f" {100 * self.density:g} %"
        plain = ", AdamW of torch" if self.optimizer == "torch-adamw" else ""
        where = {"mean": "", "none": ", not clipped"}
        clip = where.get(self.clip, f", clipped by {self.clip}")
        return f"{self.method}{kept}{plain}{clip}"

    def key(self, ranks: int) -> str:
        """Names the run on so many processes."""
        return json.dumps({**asdict(self), "ranks": ranks}, sort_keys=True)


def loops() -> list[Loop]:
    """Every run, in order of importance."""
    warm = {"options": {"warmup": "auto"}}
    spardl = [
        Loop(method="spardl", density=density, clip=clip, **warm)
        for density in (0.02, 0.01)
        for clip in ("mean", "worker", "attach")
    ]
    return [
        Loop(),
        *spardl,
        Loop(method="spardl", density=0.02, optimizer="torch-adamw"),
        Loop(method="spardl", density=0.02, clip="none", **warm),
        Loop(method="topk", density=0.02, clip="worker", **warm),
        Loop(seed=1),
        Loop(method="spardl", density=0.02, clip="worker", seed=1, **warm),
    ]


def train(loop: Loop, task: Task) -> dict[str, Any]:
    """Train on this rank of a process group; the result, the same on every rank."""
    began = time.perf_counter()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(loop.seed)
    model = DDP(task.model())
    data = task.data(torch.device("cpu"))
    state = _attached(model, loop, ranks)
    recipe = replace(task.recipe, optimizer=loop.optimizer)
    optimizer = recipe.optimizer_of(model.parameters(), waits=state is not None)
    steps = data.steps(ranks) // MICRO
    losses: list[float] = []
    for number in range(recipe.epochs * steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(number, steps)
        torch.manual_seed(seed_of(loop.seed, number, rank))
        losses.append(_backward(model, data, divmod(number, steps), loop.seed))
        if loop.clip == "mean":
            nn.utils.clip_grad_norm_(model.parameters(), _BOUND)
        optimizer.step()
        optimizer.zero_grad()
    held: list[list[float]] = [[]] * ranks
    dist.all_gather_object(held, losses)
    each_step = [sum(each) / ranks for each in zip(*held, strict=True)]
    sent = float(dense_bytes(model, ranks))
    if state is not None:
        sent = state.metrics()["bytes_sent"] / len(losses)
    return {
        **asdict(loop),
        "key": loop.key(ranks),
        "label": loop.label,
        "ranks": ranks,
        "metric_name": task.metric,
        "result": data.evaluate(model.module),
        "bytes_per_step": sent,
        "step_loss": [float(f"{loss:.4g}") for loss in each_step],
        "seconds": time.perf_counter() - began,
        "torch": torch.__version__,
    }


def _attached(model: DDP, loop: Loop, ranks: int) -> Any:
    if loop.method == "dense":
        return None
    options: dict[str, Any] = dict(loop.options)
    if loop.clip == "worker":
        options["feedback"] = Clipped(_BOUND / sqrt(ranks))
    elif loop.clip == "attach":
        options["clip"] = _BOUND
    # One unit, so that a worker's gradient is clipped as a whole.
    return thinwire.attach(
        model, loop.method, density=loop.density, scope="model", **options
    )


def _backward(model: DDP, data: Data, place: tuple[int, int], seed: int) -> float:
    """Gradients of all micro-batches; their mean loss."""
    epoch, step = place
    total = torch.zeros(())
    for micro in range(MICRO):
        batch = data.batch(
            rank=dist.get_rank(),
            ranks=dist.get_world_size(),
            epoch=epoch,
            step=step * MICRO + micro,
            seed=seed,
        )
        if micro + 1 < MICRO:
            with model.no_sync():
                total += _backward_one(model, data, batch)
        else:
            total += _backward_one(model, data, batch)
    return float(total)


def _backward_one(model: DDP, data: Data, batch: tuple[Tensor, ...]) -> Tensor:
    loss = data.loss(model, batch, None)[0] / MICRO
    loss.backward()
    return loss.detach()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.adamw.loop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", default="", help="runs whose label contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--recipe", type=json.loads, default={}, help="JSON: changes")
    given = parser.parse_args(arguments)
    if not launched.launched():
        raise SystemExit("start it by torchrun --standalone --nproc-per-node 2 -m ...")
    began = time.monotonic()
    with launched.process_group(torch.device("cpu")):
        # Micro-batches: 100 steps, of as many sequences with any number of processes.
        size = _SEQUENCES // (MICRO * dist.get_world_size())
        recipe = {"epoch_steps": 100 * MICRO, "batch": size, **given.recipe}
        task = tasks.task(TASK, given.data, verify=False, **recipe)
        for loop in loops():
            if given.only in loop.label and not _over(given, loop, began):
                result = train(loop, task)
                if launched.leads():
                    append(given.out, result)
                    print(
                        f"{loop.label}, seed {loop.seed}: {result['result']:.4f}, "
                        f"{result['seconds']:.0f} s",
                        flush=True,
                    )


def recorded() -> list[dict[str, Any]]:
    """The runs that are finished."""
    return list(read(RESULTS))


def _over(given: argparse.Namespace, loop: Loop, began: float) -> bool:
    """Whether the time is up or the run is done, as the first rank sees it."""
    done = {result["key"] for result in read(given.out)}
    late = time.monotonic() - began > 60 * given.minutes
    held = [late or loop.key(dist.get_world_size()) in done]
    dist.broadcast_object_list(held)
    return held[0]


if __name__ == "__main__":
    main()
