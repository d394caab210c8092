"""Everything a checkout of thinwire computes on a fixed seed, as hashes.

    PYTHONPATH=CHECKOUT/src python benchmarks/same_bits_capture.py OUT.json

`same_bits.py` runs this once for each of two checkouts and compares the results. It
therefore uses names that both have, and `adapter` functions where names differ.

Simulated ranks: every method, variant and codec over some consecutive steps. Real
processes: gradients of a DDP model and the state dict of what is attached to it.
"""

import argparse
import hashlib
import json
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from same_bits_cases import LINK, Case, cases, named, pieces_of
from thinwire import catalog
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.groups import simulate
from thinwire.layout import Layout

FIXED_SENDS = ("exchange", "all_gather", "all_to_all", "all_reduce_")


@dataclass
class Record:
    """The messages of one rank, hashed by destination, in order."""

    streams: dict[str, Any] = field(
        default_factory=lambda: defaultdict(lambda: hashlib.blake2b(digest_size=8))
    )

    def add(self, key: str, *parts: Any) -> None:
        for part in parts:
            content = bytes_of(part) if torch.is_tensor(part) else repr(part).encode()
            self.streams[key].update(len(content).to_bytes(8, "little") + content)

    def flush(self) -> dict[str, str]:
        hashes = {key: stream.hexdigest() for key, stream in self.streams.items()}
        self.streams.clear()
        return hashes


def bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def digest(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(bytes_of(tensor), digest_size=8).hexdigest()


_records: dict[int, Record] = {}
_inside = threading.local()


def watch_messages() -> None:
    """Patch the class of simulated groups, so that each message sent is recorded."""
    (kind,) = simulate(1, type)
    for name in FIXED_SENDS:
        setattr(kind, name, _watched(name, getattr(kind, name)))


def _watched(name: str, method: Any) -> Any:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        record = _records.get(id(group))
        if record is None or getattr(_inside, "call", False):
            return method(group, *args, **kwargs)
        _note(record, name, group, args, kwargs)
        _inside.call = True
        try:
            return method(group, *args, **kwargs)
        finally:
            _inside.call = False

    return call


def _note(record: Record, name: str, group: Any, args: Any, kwargs: Any) -> None:
    ahead = kwargs.get("nbytes", 0) is None
    if name == "exchange":
        body, dst = args[0], kwargs["dst"]
        # Zero bytes of a known length are no message.
        if body is not None and (ahead or body.numel()):
            record.add(f"to {dst}", body, ahead)
    elif name == "all_gather":
        record.add("to all", "gather", args[0], ahead)
    elif name == "all_to_all":
        for dst, body in enumerate(args[0]):
            record.add(f"to {dst}", "all to all", body, ahead)
    else:
        for tensor, op in args:
            record.add("to all", "reduce", op.name, tensor.dtype, tensor)


# Names that differ from one version to another.


def adapt_density(pipeline: Any, density: float) -> Any:
    if getattr(pipeline.collective, "density", None) is None:
        return pipeline
    return replace(pipeline, collective=pipeline.collective.with_density(density))


def adapt_remembered(state: Any) -> dict[str, torch.Tensor]:
    saved = dict(state.memory.saved)
    return {n: v if torch.is_tensor(v) else v.whole() for n, v in saved.items()}


def run_rank(case: Case, pipeline: Any, group: Any) -> dict[str, str]:
    """Every step of a case on one rank."""
    record = _records[id(group)] = Record()
    per_name = "unused names" in case.extras
    layout = named(case) if per_name else Layout.flat(case.size)
    state = pipeline.init(layout, case.device)
    state.undoable = "undo" in case.extras
    seen: dict[str, str] = {}
    for step in range(case.steps):
        if step == case.steps // 2 and case.new_density is not None:
            pipeline = adapt_density(pipeline, case.new_density)
        if step == 2 and pipeline.on_nonfinite != "unchecked" and case.size:
            skip_step(case, pipeline, group, state)
        scale = 2.0 ** (step // 2) if "scale" in case.extras else 1.0
        grad = [piece * scale for piece in pieces_of(case, group.rank, step)]
        mean = pipeline.reduce_(grad, group, state, scale=scale, per_name=per_name)
        place = f"step {step} rank {group.rank}"
        seen[f"{place} mean"] = "".join(digest(piece) for piece in grad)
        finish_step(case, pipeline, state, mean, step)
        seen.update({f"{place} {to}": h for to, h in record.flush().items()})
        # Not at every step: looking at it may end the use of candidates.
        if step in (case.steps // 2, case.steps - 1) or "look" in case.extras:
            for name, vector in adapt_remembered(state).items():
                seen[f"{place} {name}"] = digest(vector)
    seen[f"rank {group.rank} clock"] = repr(group.now())
    del _records[id(group)]
    return seen


def skip_step(case: Case, pipeline: Any, group: Any, state: Any) -> None:
    """A step in which one rank's gradient is not finite."""
    grad = pieces_of(case, group.rank, 99)
    if group.rank == group.size // 2:
        grad[-1][-1] = float("nan")
    assert pipeline.reduce_(grad, group, state) is None


def finish_step(case: Case, pipeline: Any, state: Any, mean: Any, step: int) -> None:
    """Settle a delivered mean, or undo its step in some steps of some cases."""
    if mean is None:
        return
    if state.undoable and step in (1, 4):
        pipeline.undo_(state)
    else:
        pipeline.settle(mean, state)


def run_case(case: Case) -> dict[str, str]:
    seen: dict[str, str] = {}
    for ranks in case.ranks:
        pipeline = catalog.reducer(case.method, **case.options)
        try:
            pipeline.collective.check(ranks)
        except ConfigError:
            continue
        link = LINK if case.method == "auto" else Link()
        body = partial(run_rank, case, pipeline)
        try:
            parts = simulate(ranks, body, link=link)
        except Exception as error:
            parts = [{"mean": f"{type(error).__name__}: {error}"}]
            print(f"{case.name}, P = {ranks}: {parts[0]['mean']}", file=sys.stderr)
        for part in parts:
            seen.update({f"P {ranks} {key}": value for key, value in part.items()})
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--device", default="cpu", help="of simulated ranks")
    parser.add_argument("--no-processes", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    watch_messages()
    wanted = [c for c in cases() if chosen.only in c.name]
    found = {c.name: run_case(replace(c, device=chosen.device)) for c in wanted}
    if not chosen.no_processes:
        from same_bits_ddp import capture

        found.update(capture(chosen.only))
    chosen.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
