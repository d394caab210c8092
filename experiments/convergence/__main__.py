"""Training with every method, to compare its metric with dense training.

    python -m experiments.convergence --data DATA --minutes 9 --at-once 14
    python -m experiments.convergence --write docs/experiments/results.md

The first runs what is missing in experiments/convergence/runs.jsonl, in the order of
the matrix, several runs at once on one device, until the time is up. A run that is not
finished goes on from its checkpoint in `--work` the next time. DATA holds a folder per
data set: cifar10, wikitext-2, ratings. The second writes the page.

`--probe 30` times 30 steps of every chosen run instead, all at once; nothing is kept.
`--out FOLDER` is for another machine: results and checkpoints, in parts if they are
large, are left there. `--resume-from FOLDER` goes on from such checkpoints, and
`--merge FILE` takes over results.
"""

from pathlib import Path

from experiments.convergence.campaign import Campaign, main
from experiments.convergence.matrix import FOLDERS, matrix
from experiments.convergence.report import write
from experiments.train.run import read

__all__ = ["CAMPAIGN", "RESULTS", "matrix", "read"]

RESULTS = Path(__file__).resolve().with_name("runs.jsonl")
CAMPAIGN = Campaign(
    command="python -m experiments.convergence",
    description=__doc__ or "",
    matrix=matrix,
    folders=FOLDERS,
    results=RESULTS,
    write=write,
)

if __name__ == "__main__":
    main(CAMPAIGN)
