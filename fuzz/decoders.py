"""Fuzz the decoders: any bytes must be refused or decode to a valid list.

    make fuzz SECONDS=1200 JOBS=2

Each job takes turns between two programs. `fuzz.target` is guided by the coverage of
the reference decoders and keeps inputs that reach new code. `fuzz.mutations` damages
the inputs kept so far, ten times as many a second. Both start from golden packets and a
packet of every pair of codecs; in both, compiled decoders check bounds.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count, product
from pathlib import Path
from threading import Lock
from time import monotonic

from fuzz.verdicts import RESERVED, SETTINGS, codec_of
from thinwire.catalog import INDEX_CODECS, VALUE_CODECS
from thinwire.sparse import SparseVector

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "golden"
LONGEST = 4096
SLOWEST = 60  # seconds; a busy machine stalls
# The guided fuzzer takes a kilobyte more with every execution: it is begun anew.
ROUND = 240
GUIDED = 0.1  # of a round
# Seconds that a program may take beyond its time before it is taken to hang.
LATE = 300
EXECUTIONS = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)


def main() -> None:
    """Fuzz, report, add up; the exit status is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"))
    options = parser.parse_args()
    folder = options.folder.resolve()
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    _sow(folder / "seeds")
    fuzzing = Fuzzing(folder, monotonic() + options.seconds)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(fuzzing.run_job, range(options.jobs)))
    size = sum(1 for _ in (folder / "corpus").iterdir())
    print(f"{size} inputs kept in {folder}/corpus; logs are in {folder}")
    sys.exit(1 if fuzzing.failed else 0)


class Fuzzing:
    """Jobs that fuzz until a deadline, or until one of them finds something.

    `executions.json` in the folder adds up what all runs with this folder have done.
    """

    def __init__(self, folder: Path, deadline: float) -> None:
        self.folder, self.deadline = folder, deadline
        self.failed = False
        self._lock = Lock()
        # Kernels that check bounds are kept apart from those that do not.
        checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": f"{folder}/kernels"}
        self.environment = {**os.environ, **checks}

    def run_job(self, job: int) -> None:
        """Run rounds of both programs."""
        seed = self._total()["mutated"] * 64 + job
        for number in count():
            left = self.deadline - monotonic()
            if left <= 1 or self.failed:
                return
            seconds = min(left, ROUND)
            self._run("guided", job, _guided(self.folder, seconds * GUIDED))
            mutating = _mutating(self.folder, seconds * (1 - GUIDED), seed + number)
            if not self.failed:
                self._run("mutated", job, mutating)

    def _run(self, name: str, job: int, command: list[str]) -> None:
        log = self.folder / f"{name}-{job}.log"
        start = monotonic()
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdout=output,
                stderr=output,
                cwd=HERE.parent,
                env=self.environment,
            )
            try:
                code: int | str = process.wait(max(self.deadline - start, 0) + LATE)
            except subprocess.TimeoutExpired:
                process.kill()
                code = "none: it hangs"
        said = log.read_text(errors="replace")
        with self._lock:
            self._add(name, said, monotonic() - start)
            if code != 0:
                self.failed = True
                print(f"FOUND something: exit status {code}; {log}\n{said[-3000:]}")

    def _add(self, name: str, said: str, seconds: float) -> None:
        found = EXECUTIONS.search(said)
        done = int(found[1]) if found else 0
        total = self._total()
        total[name] += done
        path = self.folder / "executions.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(total))
        fresh.replace(path)
        rate = f"{done:,} executions ({name}), {done / seconds:,.0f} a second"
        print(f"{rate}; {sum(total.values()):,} in all runs", flush=True)

    def _total(self) -> dict[str, int]:
        path = self.folder / "executions.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        return {name: known.get(name, 0) for name in ("guided", "mutated")}


def _guided(folder: Path, seconds: float) -> list[str]:
    given = {
        "max_total_time": max(int(seconds), 1),
        "max_len": LONGEST,
        "timeout": SLOWEST,
        "artifact_prefix": f"{folder}/",
        "print_final_stats": 1,
        "use_value_profile": 1,
    }
    options = [f"-{name}={value}" for name, value in given.items()]
    return ["fuzz.target", *options, str(folder / "corpus"), str(folder / "seeds")]


def _mutating(folder: Path, seconds: float, seed: int) -> list[str]:
    given = ["--seconds", f"{seconds:.0f}", "--seed", str(seed), "--scratch"]
    folders = [str(folder / "corpus"), str(folder / "seeds")]
    return ["fuzz.mutations", *folders, *given, str(folder)]


def _sow(folder: Path) -> None:
    """Golden packets, and a list in every pair of codecs, with some settings each."""
    folder.mkdir(exist_ok=True)
    for path in GOLDEN.rglob("*.bin"):
        name = "-".join(path.relative_to(GOLDEN).parts)
        (folder / name).write_bytes(path.read_bytes())
    entries = {7 * i + i % 3: (i - 9) * 1.5 ** (i % 5) for i in range(24)}
    vector = SparseVector.of(entries, size=200)
    for (index, one), (value, other) in product(
        INDEX_CODECS.items(), VALUE_CODECS.items()
    ):
        for settings in SETTINGS:
            codec = codec_of((one.tag, other.tag), settings)
            body = bytearray(codec.encode(vector).body.numpy().tobytes())
            struct.pack_into("<H", body, RESERVED, settings)
            (folder / f"{index}+{value}-{settings}").write_bytes(body)


if __name__ == "__main__":
    main()
