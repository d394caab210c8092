"""`python -m thinwire.train job.json ...`: run jobs one after the other."""

import logging
import sys
import time
from pathlib import Path

from thinwire.errors import ThinwireError
from thinwire.train.job import Job


def main(paths: list[str]) -> int:
    """Run every job; how many have failed."""
    began = time.monotonic()
    logging.basicConfig(level="WARNING")
    failed = 0
    for path in paths:
        try:
            told = Job.read(Path(path)).work(began)
        except ThinwireError as error:
            failed += 1
            told = f"failed: {error}"
        print(f"{path}: {told}", flush=True)  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
