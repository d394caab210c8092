"""Records the launches of interpreted kernels, and compiles them without a device.

    TRITON_INTERPRET=1 LAUNCHES=FILE python -m pytest -p tests.kernels.launches ...
    python -m tests.kernels.launches FILE

The first runs tests, and writes what their kernels were given: the dtypes of tensors,
and all other arguments. The second compiles each for an H100; it prints how many there
were of every kernel, and fails with the first that does not compile.
"""

import os
import pickle
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import torch

SEEN = {}


def pytest_configure():
    from triton.runtime.interpreter import InterpretedFunction

    inner = InterpretedFunction.run

    def run(self, *args, grid, warmup, **options):
        given = [_kept(each) for each in args]
        named = {name: _kept(each) for name, each in options.items()}
        call = (self.fn.__module__, self.fn.__name__, given, named)
        SEEN.setdefault(repr(call), call)
        return inner(self, *args, grid=grid, warmup=warmup, **options)

    InterpretedFunction.run = run


def pytest_unconfigure():
    Path(os.environ["LAUNCHES"]).write_bytes(pickle.dumps(list(SEEN.values())))


def _kept(argument):
    return argument.dtype if isinstance(argument, torch.Tensor) else argument


class Device:
    """A driver of Triton that knows what to compile for, and nothing more."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0


def compile_all(calls):
    """Compile each kernel once for every set of dtypes and constants."""
    from triton.runtime import driver
    from triton.runtime.jit import MockTensor

    driver.set_active(Device())
    done = {}
    for module, name, given, named in calls:
        kernel = getattr(import_module(module), name)
        arguments = dict(zip(kernel.arg_names, given, strict=False)) | named
        if "waiting" in arguments:
            arguments["waiting"] = True  # as on such a device
        constants = {each.name for each in kernel.params if each.is_constexpr}
        shape = tuple(
            (key, value if key in constants else _type(value))
            for key, value in sorted(arguments.items())
        )
        if (module, name, shape) not in done:
            done[module, name, shape] = True
            mocked = {
                key: MockTensor.wrap_dtype(value) for key, value in arguments.items()
            }
            try:
                kernel.warmup(grid=(1,), enable_fp_fusion=False, **mocked)
            except Exception as error:
                error.add_note(f"{module}.{name}: {shape}")
                raise
    return Counter(f"{module.rpartition('.')[2]}.{name}" for module, name, _ in done)


def _type(value):
    return value if isinstance(value, torch.dtype) or value is None else type(value)


if __name__ == "__main__":
    counts = compile_all(pickle.loads(Path(sys.argv[1]).read_bytes()))
    sys.stdout.writelines(f"{name} {count}\n" for name, count in counts.items())
