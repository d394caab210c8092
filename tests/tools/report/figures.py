"""Invented figures of plans and of training, besides those of `thinwire bench`."""

from typing import Any

from thinwire.tools.report.files import KIND, VERSION


def forecast(label: str, step: float, *, held: bool = True, **changes: Any) -> dict:
    return {
        "label": label,
        "method": label.split(maxsplit=1)[0],
        "step_s": step,
        "bytes_sent": round(1e8 * step),
        "parts_s": {
            "backward": 0.1 * step,
            "processor": 0.2 * step,
            "wire": 0.5 * step,
            "waiting": 0.2 * step,
        },
        "held_accuracy": held,
        "behind_dense": None,
        **changes,
    }


def plan(**changes: Any) -> dict[str, Any]:
    low = {"images": 3.26, "language": 16.84}
    return {
        KIND: "plan",
        "version": VERSION,
        "parameters": 25_000_000,
        "workers": 8,
        "setting": "25 M parameters in 4 buckets, 8 workers",
        "assumed": "with no latency (--link 1gbit,100us)",
        "verdict": "Take spardl at 1 %: a step 5 times as fast as dense.",
        "accuracy": "spardl at 0.1 % would be 10 times as fast as dense.",
        "dense_is_best": False,
        "recommended": "spardl at 1 %",
        "forecasts": [
            forecast("spardl at 1 %", 0.2),
            forecast("dense", 1.0),
            forecast("spardl at 0.1 %", 0.1, held=False, behind_dense=low),
        ],
        **changes,
    }


def curves() -> dict[str, Any]:
    points = [[second, 5 / (1 + second)] for second in range(30)]
    return {
        KIND: "curves",
        "version": VERSION,
        "title": "Loss against seconds",
        "axes": ["seconds", "loss"],
        "series": [
            {"label": "plain DDP", "ours": False, "points": points},
            {"label": "spardl", "ours": True, "points": points[:20]},
            {"label": "a <name> of many letters", "ours": True, "points": points[:9]},
        ],
    }


def result(method: str = "spardl", **changes: Any) -> dict[str, Any]:
    """As `python -m experiments.train` writes it, without what no page shows."""
    return {
        "task": "resnet20-cifar10",
        "workers": 8,
        "metric_name": "accuracy, %",
        "result": 86.2,
        "seconds": 42.0,
        "seed": 0,
        "device": "cpu",
        "reduction": {
            "method": method,
            "density": 0.01,
            "feedback": "residual",
            "options": {},
        },
        "history": {
            "metric": [40.0, 80.0, 86.2],
            "loss": [2.0, 1.0, 0.5],
            "seconds": [10.0, 12.0, 11.0],
            "busiest_bytes_per_step": [3e4, 2e4, 2e4],
        },
        **changes,
    }
