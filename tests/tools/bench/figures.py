"""Invented figures in the format of `thinwire bench`."""

from typing import Any

from thinwire.tools.report.files import KIND, VERSION

LABELS = ("torch", "powersgd-1", "spardl", "topk", "spardl <script>&amp;")
LONG = "spardl:teams=2:variant=recursive elias-fano+bfloat16"


def row(label: str, seconds: float, **changes: Any) -> dict[str, Any]:
    peer = label in ("torch", "powersgd-1")
    phases = {"library": seconds} if peer else {"select": 0.4 * seconds}
    return {
        "label": label,
        "method": label,
        "codec": None,
        "peer": peer,
        "seconds": seconds,
        "low": 0.9 * seconds,
        "high": 1.2 * seconds,
        "walls": [seconds] * 3,
        "cpu": 0.5 * seconds,
        "sent": round(1e8 * seconds),
        "rounds": 6,
        "wire": round(1.1e8 * seconds),
        "phases": phases if peer else {**phases, "exchange": 0.6 * seconds},
        "error": 0.0 if label == "torch" else 0.9,
        "forecast": None,
        **changes,
    }


def reduction(ranks: int = 4, **changes: Any) -> dict[str, Any]:
    seconds = (0.7654, 0.25, 0.0511, 0.1, 0.2, 0.12345)
    rows = [row(*each) for each in zip((*LABELS, LONG), seconds, strict=True)]
    return {
        KIND: "reduce",
        "version": VERSION,
        "size": 14_700_000,
        "density": 0.01,
        "kept": 147_000,
        "ranks": ranks,
        "hosts": ranks,
        "ranks_per_machine": ranks,
        "place": "lab",
        "rate": 10**9,
        "floor": 6.6e5,
        "repeats": 15,
        "machine": "a machine of 2 cores",
        "date": "2025-11-16T08:00:00+00:00",
        "rows": rows,
        **changes,
    }


def training() -> dict[str, Any]:
    return {
        KIND: "train",
        "version": VERSION,
        "model": "resnet20",
        "parameters": 269_722,
        "density": 0.01,
        "scope": "bucket",
        "ranks": 2,
        "ranks_per_machine": 2,
        "place": "loopback",
        "rate": None,
        "machine": "a machine of 2 cores",
        "date": "2025-11-16T08:00:00+00:00",
        "rows": [row("torch", 0.2, sent=None), row("spardl", 0.1)],
    }
