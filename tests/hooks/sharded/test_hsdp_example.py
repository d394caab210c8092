"""examples/hsdp.py runs as its first lines say, and resumes, with other shards too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "hsdp.py"


def torchrun(*options: str) -> list[str]:
    """The lines of losses that the example prints."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "4", EXAMPLE, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert "replicas are bit-identical" in done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("step")]


@pytest.mark.processes
@pytest.mark.timeout(400)  # three launches, each of which loads torch from scratch
def test_it_trains_saves_and_goes_on(tmp_path):
    folder = ["--folder", str(tmp_path / "checkpoint")]
    losses = torchrun(*folder) + torchrun(*folder, "--steps", "40", "--resume")
    assert [line.split(":")[0] for line in losses] == [f"step {n}" for n in range(40)]
    first, *_, last = (float(line.split()[-1]) for line in losses)
    assert last < first
    more = torchrun(*folder, "--steps", "42", "--resume", "--shards", "1")
    assert [line.split(":")[0] for line in more] == ["step 40", "step 41"]
