"""Whether two checkouts of thinwire compute the same, to the bit.

    python benchmarks/same_bits.py BEFORE AFTER [--only NAME] [--save FILE]

BEFORE and AFTER are checkouts, or files written with `--save`. Compared, on a fixed
seed: every rank's mean, every message it sends and its residual, for every method,
variant and codec on simulated ranks; and the gradients and state dicts of DDP models in
real processes. Exits with 1 where anything differs.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

CAPTURE = Path(__file__).with_name("same_bits_capture.py")
SHOWN = 3
# Of each case, by what an entry's key says.
KINDS = ("mean", "messages", "residual", "gradient", "state dict", "clock")

Entries = dict[str, str]


def capture(tree: Path, options: list[str]) -> dict[str, Entries]:
    """What a checkout computes, or what a file says that it did."""
    if tree.is_file():
        return json.loads(tree.read_text())
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
    with TemporaryDirectory() as folder:
        out = Path(folder) / "bits.json"
        command = [sys.executable, str(CAPTURE), str(out), *options]
        subprocess.run(command, env=environment, check=True)
        return json.loads(out.read_text())


def kind_of(key: str) -> str:
    """Which column of the table an entry belongs to."""
    words = key.split()
    if " state " in key:
        return "state dict"
    if " grad " in key:
        return "gradient"
    if " to " in key:
        return "messages"
    return words[-1] if words[-1] in ("mean", "clock") else "residual"


def differences(before: Entries, after: Entries) -> list[str]:
    """The keys whose values differ or that only one side has, in order."""
    keys = [*before, *(key for key in after if key not in before)]
    return [key for key in keys if before.get(key) != after.get(key)]


def compare(before: dict[str, Entries], after: dict[str, Entries]) -> int:
    """Print a line for each case; how many of them differ."""
    different = 0
    compared: Counter[str] = Counter()
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            print(f"MISSING    {name}: only {'after' if old is None else 'before'}")
            different += 1
            continue
        kinds = Counter(map(kind_of, old))
        compared += kinds
        counts = ", ".join(f"{kinds[k]} {k}" for k in KINDS if kinds[k])
        unequal = differences(old, new)
        if not unequal:
            print(f"equal      {name}: {counts}")
            continue
        different += 1
        print(f"DIFFERENT  {name}: {len(unequal)} of {len(old)} entries; the first are")
        for key in unequal[:SHOWN]:
            print(f"           {key}: {old.get(key)} -> {new.get(key)}")
    counts = ", ".join(f"{compared[k]} {k}" for k in KINDS if compared[k])
    print(f"{len(before) - different} of {len(before)} cases equal ({counts})")
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--device", default="cpu", help="of simulated ranks")
    parser.add_argument("--no-processes", action="store_true")
    parser.add_argument("--save", type=Path, help="keep what AFTER computes in a file")
    chosen = parser.parse_args()
    options = ["--only", chosen.only, "--device", chosen.device]
    options += ["--no-processes"] * chosen.no_processes
    before, after = (capture(tree, options) for tree in (chosen.before, chosen.after))
    if chosen.save:
        chosen.save.write_text(json.dumps(after))
    if chosen.before.is_file():
        before = {
            name: entries
            for name, entries in before.items()
            if chosen.only in name
            and not (chosen.no_processes and name.startswith("attach "))
        }
    sys.exit(1 if compare(before, after) else 0)


if __name__ == "__main__":
    main()
