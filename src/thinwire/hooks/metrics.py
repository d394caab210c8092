"""The metrics of a hook, as floats by name."""

from collections.abc import Mapping

from thinwire.groups import Traffic
from thinwire.hooks.engine import Engine
from thinwire.hooks.progress_check import residual_norm
from thinwire.hooks.units import Units

# The primitives whose time counts for each phase, and the calls of the codec. The time
# of primitives within a codec counts for the codec's calls only.
PHASES = {
    "guard": ("magnitudes",),
    "accumulate": ("accumulate_",),
    "select": (
        "select",
        "take",
        "split",
        "merge_split",
        "row_peaks",
        "at_least",
    ),
    "encode": ("encode", "decode"),
    "sketch": (
        "encode_sketch",
        "estimate_sketch_",
        "sketch_energy",
        "shuffled",
        "sketch_rows",
        "peel_rows_",
        "estimate_rows",
        "set_bits",
        "encode_bitmap",
    ),
    "merge": (
        "merge_add",
        "merge_all",
        "add_at_",
        "subtract_at_",
        "leave_at_",
        "return_at_",
        "add_",
        "restore_",
        "flag_mismatch_",
        "gather",
        "join",
        "strictly_increasing",
    ),
    "write": ("scatter_", "write_mean_"),
}


def metrics_of(
    engine: Engine,
    traffic: Traffic,
    density: float | None,
    *,
    inside: Traffic,
    dense_bytes: int,
) -> dict[str, float]:
    """The counters of an engine that runs no pass.

    `inside` is the part of the traffic that stays inside of nodes, `dense_bytes` what a
    rank sends in a dense step.
    """
    seconds = engine.stopwatch
    ratio = None if engine.progress is None else engine.progress.ratio
    units = _of_collectives(engine.units)
    return {
        "steps": float(engine.passes_here),
        "skipped_steps": float(engine.skipped),
        "bytes_sent": float(traffic.sent),
        "bytes_sent_in_node": float(inside.sent),
        "bytes_received": float(traffic.received),
        "dense_bytes": float(dense_bytes * engine.passes_here),
        "rounds": float(traffic.rounds),
        "wait_ms": 1e3 * traffic.wait,
        **{
            f"{phase}_ms": 1e3 * sum(seconds.get(name, 0.0) for name in names)
            for phase, names in PHASES.items()
        },
        "density": density or 1.0,
        "kept_density": engine.kept,
        "residual_norm": residual_norm(engine.units),
        **({} if ratio is None else {"residual_over_gradient": ratio}),
        **_times(units),
        **units,
    }


def summary_of(found: Mapping[str, float]) -> str:
    """One line of `metrics_of`: what is sent and what it takes, and what dense does."""
    steps = found["steps"]
    if not steps:
        return "no step was reduced yet"
    sent, dense = found["bytes_sent"] / steps, found["dense_bytes"] / steps
    said = [
        f"{steps:.0f} steps: {_bytes(sent)} sent per step, {_bytes(dense)} by dense"
    ]
    if sent and dense:
        said[0] += f" ({dense / sent:.3g} times as much)"
    if inside := found["bytes_sent_in_node"] / steps:
        said[0] += f", only {_bytes(sent - inside)} between nodes"
    if "dense_ms" in found:
        ours, theirs = found["choice_ms"], found["dense_ms"]
        win = (
            f"{theirs / ours:.3g} times as fast" if ours < theirs else "nothing is won"
        )
        said.append(f"{ours:.3g} ms per reduction, {theirs:.3g} ms by dense: {win}")
    else:
        busy = sum(found[name] for name in ("wait_ms", *(f"{p}_ms" for p in PHASES)))
        said.append(
            f"{busy / steps:.3g} ms of the communication thread per step; the time of "
            "dense is not known here ('auto' measures it)"
        )
    if found["skipped_steps"]:
        said.append(f"{found['skipped_steps']:.0f} steps skipped")
    return "; ".join(said)


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def _times(units: Mapping[str, float]) -> dict[str, float]:
    """The milliseconds of dense and of the choice, where all units have timed both."""
    found: dict[str, float] = {}
    for name in ("dense_ms", "choice_ms"):
        times = [value for key, value in units.items() if key.endswith(f"_{name}")]
        number = sum(key.endswith("_choice") for key in units)
        if times and len(times) == number:
            found[name] = sum(times)
    return found if len(found) > 1 else {}


def _of_collectives(units: Units) -> dict[str, float]:
    """The metrics of each unit's collective, by the number of the unit."""
    return {
        f"unit_{number}_{name}": value
        for number, state in enumerate(units.existing_states)
        for name, value in state.collective_memory.metrics().items()
    }
