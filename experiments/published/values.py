"""Values in few bits, trained: a small network on Fashion-MNIST, two seeds.

    python -m experiments.published.values --data FOLDER --file values.jsonl

Four virtual workers send the top 1 % with every codec of CODECS. What a codec rounds
off stays in the residual. Runs are lines of the file; what is there is not run again.
"""

import argparse
import json
import logging
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from experiments.tasks import idx
from experiments.tasks.base import Recipe
from experiments.tasks.images import CLASSES, ImageTask
from experiments.train.reduction import Reduction
from experiments.train.run import run_virtual
from experiments.train.spec import Spec

CODECS = ("rice+float32", "rice+log3", "rice+tiers2", "rice+tiers4", "rice+tiers8")
SEEDS = (0, 1)
WORKERS = 4
_PIXELS, _WIDTH = 32 * 32, 128
_RECIPE = Recipe(
    epochs=3,
    batch=32,
    learning_rate=0.1,
    momentum=0.9,
    schedule="cosine",
    warmup_epochs=0.5,
)


def network() -> nn.Module:
    """Two hidden layers, 150,000 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(_PIXELS, _WIDTH),
        nn.BatchNorm1d(_WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.BatchNorm1d(_WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, CLASSES),
    )


def specs() -> list[Spec]:
    """Dense, then every codec; all of one seed before the next."""
    sparse = [Reduction(method="topk", density=0.01, codec=name) for name in CODECS]
    return [
        Spec(task="mlp-fashion", reduction=each, workers=WORKERS, seed=seed)
        for seed in SEEDS
        for each in (Reduction(), *sparse)
    ]


def known(file: Path) -> dict[str, dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {each["key"]: each for each in map(json.loads, lines)}


def train(file: Path, data: Path) -> None:
    """Run what is missing, and write a line for each."""
    task = ImageTask(
        "mlp-fashion", _RECIPE, data, verify=True, load=idx.load, network=network
    )
    for spec in specs():
        if spec.key in known(file):
            continue
        result = run_virtual(task, spec, device=torch.device("cpu"))
        assert result is not None
        kept = {
            "key": spec.key,
            "codec": spec.reduction.codec or "dense",
            "seed": spec.seed,
            "accuracy": result["result"],
            "sent": result["history"]["bytes_per_step"][-1],
        }
        with file.open("a") as lines:
            lines.write(json.dumps(kept) + "\n")


def show(file: Path) -> None:
    """Accuracy of every seed, and the bytes of a worker and step."""
    runs = known(file).values()
    print("| codec | accuracy, % | mean | bytes per worker and step |")
    print("| --- | --- | --- | --- |")
    for name in ("dense", *CODECS):
        own = [run for run in runs if run["codec"] == name]
        if own:
            found = [run["accuracy"] for run in own]
            each = " / ".join(f"{accuracy:.2f}" for accuracy in found)
            sent = mean(run["sent"] for run in own)
            print(f"| `{name}` | {each} | {mean(found):.2f} | {sent:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--file", type=Path, default=Path("values.jsonl"))
    parser.add_argument("--data", type=Path, help="left out: show what was trained")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.data is not None:
        train(args.file, args.data)
    show(args.file)


if __name__ == "__main__":
    main()
