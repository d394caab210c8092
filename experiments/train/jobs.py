"""`python -m experiments.train.jobs job.json ...`: run jobs one after the other."""

import logging
import sys
import time
from pathlib import Path

from experiments.train.job import Job
from thinwire.errors import ThinwireError


def main(paths: list[str]) -> int:
    """Run every job; how many have failed."""
    began = time.monotonic()
    logging.basicConfig(level="WARNING")
    failed = 0
    for path in paths:
        try:
            outcome = Job.read(Path(path)).work(began)
        except ThinwireError as error:
            failed += 1
            outcome = f"failed: {error}"
        print(f"{path}: {outcome}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
