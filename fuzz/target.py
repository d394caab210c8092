"""The fuzzer's process: any bytes to the reference decoders, guided by their coverage.

The fast decoders get the same bytes and must agree. Takes libFuzzer's options;
`fuzz/decoders.py` starts it.
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports(include=["thinwire"]):
    import torch

    from fuzz.limits import limit_memory
    from fuzz.verdicts import both, reaching, tensor_of
    from thinwire.errors import WireError
    from thinwire.kernels.dispatch import preload
    from thinwire.wire import Packet

# Compiled kernels must be loaded before Python code is instrumented.
preload("cpu")


def decode(data: bytes) -> None:
    """Decode the packet, then its sections even if the header is invalid."""
    with suppress(WireError):
        Packet.announced(tensor_of(data))
        Packet.parse(tensor_of(data))
    fast, plain = both(reaching(data))
    assert fast == plain, "the fast decoder and the reference do not agree"


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    torch.set_num_threads(1)
    limit_memory()
    atheris.Setup(sys.argv, decode)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
