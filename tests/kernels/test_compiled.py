"""Processes that start together compile a kernel once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from thinwire.kernels.cpu import compiled

# Loads the one module, without torch, so that starting takes no time.
PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compiled", sys.argv[1])
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
sys.path.insert(0, sys.argv[2])
import squares
squares.kernel = compiled.kernel
double = compiled.kernel(squares.double)
squares.double = double
total = compiled.kernel(squares.total)
print("ready", flush=True)
sys.stdin.readline()
assert total(1000) == 999000
print(sum(total.stats.cache_misses.values()), sum(total.stats.cache_hits.values()))
"""

FUNCTIONS = """
def double(x):
    return 2 * x

def total(n):
    found = 0
    for i in range(n):
        found += double(i)
    return found
"""


# Of two kernels, one of which calls the other, compiles one and then both.
IN_TURN = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("compiled", sys.argv[1])
compiled = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiled)
sys.path.insert(0, sys.argv[2])
import squares
squares.double = double = compiled.kernel(squares.double)
total = compiled.kernel(squares.total)
assert double(21) == 42
if sys.argv[3] == "both":
    assert "numba.typed.typedlist" not in sys.modules, "got ready for compiling"
    assert total(1000) == 999000
import gc
assert gc.isenabled()
for each in (double, total):
    print(sum(each.stats.cache_misses.values()), end=" ")
"""


def test_a_loaded_kernel_is_called_by_a_compiled_one(tmp_path):
    (tmp_path / "squares.py").write_text(FUNCTIONS)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", IN_TURN, compiled.__file__, str(tmp_path)]
    answers = [
        subprocess.run(
            [*command, which], env=environment, capture_output=True, check=True
        ).stdout.split()
        for which in ("one", "both", "both")
    ]
    assert answers == [[b"1", b"0"], [b"0", b"1"], [b"0", b"0"]]


# A kernel with a part that another file defines.
WITH_A_PART = """
import sys
sys.path.insert(0, sys.argv[1])
import compiled, parts, squares
squares.double = compiled.part(parts.double)
total = compiled.kernel(squares.total)
print(total(1000), sum(total.stats.cache_hits.values()))
"""


def test_a_change_of_a_file_with_parts_is_noticed(tmp_path):
    shutil.copy(compiled.__file__, tmp_path / "compiled.py")
    (tmp_path / "squares.py").write_text(FUNCTIONS)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-Bc", WITH_A_PART, str(tmp_path)]

    def total_with(part):
        (tmp_path / "parts.py").write_text(f"def double(x):\n    return {part}\n")
        os.utime(tmp_path / "parts.py", (0, 0))
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        return done.stdout.split()

    assert total_with("2 * x") == [b"999000", b"0"]
    assert total_with("2 * x") == [b"999000", b"1"]
    assert total_with("1 * x + x + 1") == [b"1000000", b"0"]


def test_the_first_compiles_and_the_others_load(tmp_path):
    (tmp_path / "squares.py").write_text(FUNCTIONS)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", PROGRAM, compiled.__file__, str(tmp_path)]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = sorted(process.communicate()[0].strip() for process in processes)
    assert answers == ["0 1", "0 1", "1 0"]
    assert list(Path(tmp_path / "cache").rglob("thinwire.lock"))
