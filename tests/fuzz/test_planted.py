"""The fuzzer's programs find what is planted in a compiled decoder."""

import os
import subprocess
import sys
from pathlib import Path

from fuzz.decoders import Fuzzing

from thinwire.catalog import codec
from thinwire.kernels.cpu import varint
from thinwire.sparse import SparseVector

SOURCE = Path(varint.__file__).read_text()
END = "            if at >= len(section):\n                return _ENDED\n"

# Puts the file's kernel in place of the library's, and runs a program of the fuzzer.
PROGRAM = """
import sys
from thinwire.kernels.cpu import varint
import planted
varint._read = planted._read
from fuzz.mutations import main
main()
"""


def fuzz(tmp_path, source, seconds=40):
    (tmp_path / "planted.py").write_text(source)
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    vector = SparseVector.of({300 * i: float(i) for i in range(24)}, size=9000)
    packet = codec("varint+float32").encode(vector)
    (seeds / "varint").write_bytes(packet.body.numpy().tobytes())
    path = os.pathsep.join([str(tmp_path), *sys.path])
    options = [str(seeds), "--seconds", str(seconds), "--scratch", str(tmp_path)]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *options],
        env={**Fuzzing(tmp_path, 0).environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_read_beyond_the_end_is_found(tmp_path):
    assert SOURCE.count(END) == 1
    done = fuzz(tmp_path, SOURCE.replace(END, ""))
    assert done.returncode == 1, done.stderr
    assert "IndexError: index is out of bounds" in done.stdout
    assert list(tmp_path.glob("found-*"))


def test_what_is_right_passes(tmp_path):
    done = fuzz(tmp_path, SOURCE, seconds=2)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_list_is_found(tmp_path):
    wrong = SOURCE.replace("if shift > 0 and octet == 0:", "if False:")
    assert wrong != SOURCE
    done = fuzz(tmp_path, wrong)
    assert done.returncode == 1, done.stderr
    assert "do not agree" in done.stdout
