"""The metrics of a hook, as floats by name."""

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
    engine: Engine, traffic: Traffic, inside: Traffic, density: float | None
) -> dict[str, float]:
    """The counters of an engine that runs no pass.

    `inside` is the part of the traffic that stays inside of nodes.
    """
    seconds = engine.stopwatch
    return {
        "steps": float(engine.passes_here),
        "skipped_steps": float(engine.skipped),
        "bytes_sent": float(traffic.sent),
        "bytes_sent_in_node": float(inside.sent),
        "bytes_received": float(traffic.received),
        "rounds": float(traffic.rounds),
        "wait_ms": 1e3 * traffic.wait,
        **{
            f"{phase}_ms": 1e3 * sum(seconds.get(name, 0.0) for name in names)
            for phase, names in PHASES.items()
        },
        "density": density or 1.0,
        "kept_density": engine.kept,
        "residual_norm": residual_norm(engine.units),
        **_of_collectives(engine.units),
    }


def _of_collectives(units: Units) -> dict[str, float]:
    """The metrics of each unit's collective, by the number of the unit."""
    return {
        f"unit_{number}_{name}": value
        for number, state in enumerate(units.existing_states)
        for name, value in state.collective_memory.metrics().items()
    }
