"""Fuzz the decoders: any bytes must be refused or decode to a valid list.

    make fuzz SECONDS=1200

A coverage-guided fuzzer (atheris) runs the reference decoders, starting from golden
packets and a packet of every pair of codecs. The fast decoders must agree on each
input. A separate process compares them again on the corpus that the fuzzer kept.
"""

import argparse
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from time import perf_counter

from fuzz.verdicts import RESERVED, SETTINGS, both, codec_of, reaching
from thinwire.catalog import INDEX_CODECS, VALUE_CODECS
from thinwire.sparse import SparseVector

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "golden"
LONGEST = 4096
SLOWEST = 60  # seconds; a busy machine stalls
# The fuzzer itself takes a kilobyte more with every execution: it is begun anew.
ROUND = 240


def main() -> None:
    """Fuzz, replay, report; the exit status is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"))
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    corpus = options.folder / "corpus"
    seeds = options.folder / "seeds"
    corpus.mkdir(parents=True, exist_ok=True)
    _sow(seeds)
    crashed = fuzz(options.folder, options.seconds)
    disagreements = list(replay([*corpus.iterdir(), *seeds.iterdir()]))
    print(f"{len(disagreements)} disagreements between reference and fast decoders")
    for path, said in disagreements:
        print(f"  {path}: {said}")
    sys.exit(1 if crashed or disagreements else 0)


def fuzz(folder: Path, seconds: int) -> bool:
    """Run the fuzzer's process for so long; whether it found anything."""
    start, executions, failed = perf_counter(), 0, False
    while not failed and (left := seconds - int(perf_counter() - start)) > 0:
        log = one_round(folder, min(left, ROUND))
        found = re.search(r"stat::number_of_executed_units:\s*(\d+)", log)
        executions += int(found[1]) if found else 0
        failed = re.search(r"^Done \d+ runs", log, re.MULTILINE) is None
    rate = executions / (perf_counter() - start)
    size = sum(1 for _ in (folder / "corpus").iterdir())
    print(f"{executions:,} executions, {rate:,.0f} a second; ", end="")
    print(f"{size} inputs in {folder}/corpus; the log is {folder}/log")
    if failed:
        print(f"FOUND something\n{log[-3000:]}")
    return failed


def one_round(folder: Path, seconds: int) -> str:
    """Run one process of the fuzzer; returns its output."""
    given = {
        "max_total_time": seconds,
        "max_len": LONGEST,
        "timeout": SLOWEST,
        "artifact_prefix": f"{folder}/",
        "print_final_stats": 1,
        "use_value_profile": 1,
    }
    command = [sys.executable, "-m", "fuzz.target"]
    command += [f"-{name}={value}" for name, value in given.items()]
    command += [str(folder / "corpus"), str(folder / "seeds")]
    log = folder / "log"
    with log.open("w") as output:
        subprocess.run(
            command, check=False, stdout=output, stderr=output, cwd=HERE.parent
        )
    return log.read_text(errors="replace")


def replay(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """Those inputs that reference and fast decoders do not agree on."""
    start, lists = perf_counter(), 0
    for path in paths:
        try:
            fast, plain = both(reaching(path.read_bytes()))
        except Exception as error:  # whatever it is, it was found
            yield path, repr(error)
            continue
        lists += plain is not None
        if fast != plain:
            verdicts = ("a list" if v else "refused" for v in (fast, plain))
            yield path, "fast: {}, reference: {}".format(*verdicts)
    seconds = perf_counter() - start
    print(f"{len(paths)} inputs replayed in {seconds:.0f} s; {lists} of them are lists")


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
