"""Phases: the time of every primitive that a reduction calls counts for one of them."""

import re
from itertools import chain
from pathlib import Path

import thinwire
from thinwire import kernels
from thinwire.accumulator import Accumulator
from thinwire.hooks.metrics import PHASES

TIMED = list(chain.from_iterable(PHASES.values()))


def test_every_primitive_that_a_reduction_calls_is_in_a_phase():
    folder = Path(thinwire.__file__).parent
    packages = ("collectives", "feedback", "reducers")
    files = [file for name in packages for file in (folder / name).glob("*.py")]
    text = "".join(file.read_text() for file in [*files, folder / "sparse.py"])
    called = set(re.findall(r"kernels\.(\w+)\(", text))
    primitives = {n for n in called if hasattr(getattr(kernels, n), "reference")}
    assert {"magnitudes", "sketch_rows", "write_mean_"} <= primitives
    assert primitives <= set(TIMED)


def test_every_name_in_a_phase_is_one_that_is_timed():
    assert len(TIMED) == len(set(TIMED))
    for name in set(TIMED) - {"encode", "decode"}:  # the codec's
        found = getattr(kernels, name, None) or getattr(Accumulator, name, None)
        assert found is not None or name == "restore_", name
