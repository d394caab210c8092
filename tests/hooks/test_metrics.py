"""Phases: every primitive that is not a codec's alone is in one of them."""

import re
from itertools import chain
from pathlib import Path

from thinwire import kernels
from thinwire.hooks.metrics import PHASES


def test_every_primitive_is_in_one_phase():
    folder = Path(kernels.__file__).parent
    sources = [p.read_text() for p in folder.glob("*.py") if p.stem != "codes"]
    entered = set(re.findall(r'entered\("(\w+)"\)', "".join(sources)))
    assert {"select", "sketch_rows", "set_bits"} <= entered
    timed = list(chain.from_iterable(PHASES.values()))
    assert len(timed) == len(set(timed))
    # Codecs are timed as a whole; a bitmap is also written without one.
    assert set(timed) == entered | {"encode", "decode", "encode_bitmap"}
