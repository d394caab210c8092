"""Training by AdamW with every method and its peers, to compare with dense training.

    python -m experiments.adamw --data DATA --minutes 9 --at-once 12
    python -m experiments.adamw --write docs/experiments/adamw.md

The first runs what is missing in experiments/adamw/runs.jsonl, the important runs
first, several at once on one device, until the time is up; a run that is not finished
goes on from its checkpoint in `--work` the next time. DATA holds a folder per data
set: wikitext-2, tiny-shakespeare, cifar10. The dense run of gpt-bytes leaves its model
there, for gpt-finetune. The second writes the page. All other options are those of
`python -m experiments.convergence`.
"""

from pathlib import Path

from experiments.adamw.matrix import FOLDERS, STAGES, matrix
from experiments.adamw.report import write
from experiments.convergence.campaign import Campaign, main

RESULTS = Path(__file__).resolve().with_name("runs.jsonl")
CAMPAIGN = Campaign(
    command="python -m experiments.adamw",
    description=__doc__ or "",
    matrix=matrix,
    folders=FOLDERS,
    results=RESULTS,
    write=write,
    stages=tuple(STAGES),
    dropped=("checksum", "seconds"),
)

if __name__ == "__main__":
    main(CAMPAIGN)
