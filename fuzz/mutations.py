"""Mutate packets by the thousand: each must be refused or decode to a valid list.

    python -m fuzz.mutations FOLDER [FOLDER ...] --seconds 60 --scratch .fuzz

A batch is one input many times over, every copy damaged in its own way. The fast
decoders read all of them; a share is also read by the reference, which must agree. A
copy that breaks a decoder is saved; of a process that dies, the last batch is in its
`.rows` file.
"""

import argparse
import hashlib
import mmap
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.limits import limit_memory
from fuzz.verdicts import both, reaching, verdict
from thinwire.wire import HEADER, WORD

Rows = NDArray[np.uint8]
Places = NDArray[np.int64]

COPIES = 128
# Of this number of copies one is decoded by the reference too, ten times as slowly.
COMPARED = 32
LONGEST = 4096
# Bytes that numbers, lengths and loops go wrong at.
TELLING = np.array([0, 1, 0x3F, 0x40, 0x7F, 0x80, 0xFE, 0xFF], np.uint8)
NUMBERS = (slice(8, 16), slice(16, 20), slice(20, 24))  # size, nnz, index words
STEPS = np.array([-64, -8, -2, -1, 1, 2, 8, 64])


def main() -> None:
    """Compare every input, mutate them until the time is over; exit 1 on a finding."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=Path(".fuzz"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    limit_memory()
    deadline = monotonic() + options.seconds
    inputs = [path.read_bytes() for f in options.folders for path in f.iterdir()]
    found = all(_holds(one, options.scratch, compare=True) for one in inputs)
    print(f"{len(inputs)} inputs compared with the reference")
    executions, held = mutate(inputs, deadline, options.seed, options.scratch)
    print(f"mutated by seed {options.seed}")
    print(f"stat::number_of_executed_units: {executions}")  # as libFuzzer says it
    sys.exit(0 if found and held else 1)


def mutate(
    inputs: list[bytes], deadline: float, seed: int, scratch: Path
) -> tuple[int, bool]:
    """Decode damaged copies until the deadline: how many, and whether all held."""
    generator = np.random.default_rng(seed)
    executions, held = 0, True
    memory = _kept(scratch / f"{seed}.rows")
    while held and monotonic() < deadline:
        rows = damaged(inputs, generator, memory)
        for number, row in enumerate(rows):
            compare = number % COMPARED == 0
            held &= _holds(row.tobytes(), scratch, compare=compare)
        executions += len(rows)
    return executions, held


def damaged(inputs: list[bytes], generator: np.random.Generator, memory: Rows) -> Rows:
    """Copies of an input, each with one to eight kinds of damage, in this memory."""
    chosen = inputs[generator.integers(len(inputs))][:LONGEST]
    chosen = chosen.ljust(HEADER.size, b"\0")
    chosen += bytes(-len(chosen) % WORD)
    # Some batches are of packets cut short, some of packets with more at the end.
    words = len(chosen) // WORD + int(generator.choice([0, 0, 0, -1, -2, 1, 4]))
    length = min(max(words, HEADER.size // WORD), LONGEST // WORD) * WORD
    rows = memory[: COPIES * length].reshape(COPIES, length)
    rows[:] = np.frombuffer(chosen[:length].ljust(length, b"\0"), np.uint8)
    for _ in range(int(generator.integers(1, 9))):
        at = np.flatnonzero(generator.random(COPIES) < 0.5)  # noqa: PLR2004
        DAMAGE[generator.integers(len(DAMAGE))](rows, at, generator)
    return rows


def _flip_bits(rows: Rows, at: Places, generator: np.random.Generator) -> None:
    place = _places(rows, at, generator)
    rows[at, place] ^= np.uint8(1) << generator.integers(
        8, size=len(at), dtype=np.uint8
    )


def _set_bytes(rows: Rows, at: Places, generator: np.random.Generator) -> None:
    rows[at, _places(rows, at, generator)] = generator.choice(TELLING, len(at))


def _move_words(rows: Rows, at: Places, generator: np.random.Generator) -> None:
    words = rows.view(np.uint64)
    source, target = generator.integers(words.shape[1], size=(2, len(at)))
    words[at, target] = words[at, source]


def _step_numbers(rows: Rows, at: Places, generator: np.random.Generator) -> None:
    """Change the size, the nnz or the length of the index section by a little."""
    field = NUMBERS[generator.integers(len(NUMBERS))]
    wide = np.uint64 if field.stop - field.start == WORD else np.uint32
    number = np.ascontiguousarray(rows[at, field]).view(wide)
    changed = number + generator.choice(STEPS, (len(at), 1)).astype(wide)
    rows[at, field] = changed.view(np.uint8)


def _set_settings(rows: Rows, at: Places, generator: np.random.Generator) -> None:
    """Choose other codecs' settings, or other codecs."""
    place = generator.choice([4, 5, 6, 6], len(at))
    rows[at, place] = generator.integers(64, size=len(at))


Damage = Callable[[Rows, Places, np.random.Generator], None]
DAMAGE: list[Damage] = [_flip_bits, _flip_bits, _flip_bits, _set_bytes, _set_bytes]
DAMAGE += [_move_words, _step_numbers, _set_settings]


def _places(rows: Rows, at: Places, generator: np.random.Generator) -> Places:
    """A byte of each row, most often of its sections."""
    length = rows.shape[1]
    begin = HEADER.size if length > HEADER.size else 0
    return generator.integers(begin, length, size=len(at))


def _holds(data: bytes, scratch: Path, *, compare: bool) -> bool:
    """Whether an input is refused or a valid list; if not, it is saved and shown."""
    try:
        received = reaching(data)
        if compare:
            fast, plain = both(received)
            assert fast == plain, "the fast decoder and the reference do not agree"
        else:
            verdict(received)
    except Exception:
        path = scratch / f"found-{hashlib.sha1(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"FOUND {path}\n{traceback.format_exc()}")
        return False
    return True


def _kept(path: Path) -> Rows:
    """Memory for a batch, in a file that outlives a process that dies."""
    with path.open("w+b") as file:
        file.truncate(COPIES * LONGEST)
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


if __name__ == "__main__":
    main()
