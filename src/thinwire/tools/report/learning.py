"""Curves of training on a page: of reference tasks, and any other lines."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from thinwire.tools.report import page
from thinwire.tools.report.curves import Series, both_sizes
from thinwire.tools.report.words import Figures, number, percent, size

_COMPARED = ("dense", "powersgd")


def section(figures: Figures) -> str:
    """Lines as they are given: `series` of `label`, `points` and `ours`."""
    series = [
        Series(each["label"], [tuple(spot) for spot in each["points"]], each["ours"])
        for each in figures["series"]
    ]
    below, beside = figures["axes"]
    chart = both_sizes(series, (below, beside), figures["title"])
    return page.section(figures["title"], chart, figures.get("note", ""))


def sections(results: Sequence[Figures]) -> list[str]:
    """Results of `python -m experiments.train`, those of one task together."""
    tasks: dict[str, list[Figures]] = {}
    for each in results:
        tasks.setdefault(f"{each['task']}, {each['workers']} workers", []).append(each)
    return [_task(name, group) for name, group in tasks.items()]


def _task(name: str, group: Sequence[Figures]) -> str:
    metric = str(group[0]["metric_name"])
    drawn = both_sizes(
        [_line(each, each["history"]["metric"]) for each in group],
        ("epochs", metric),
        f"{metric} after every epoch",
    )
    heads = ["method", metric, "training loss", "bytes a step", "seconds"]
    rows = [
        [
            _label(each),
            f"{each['result']:.2f}",
            f"{each['history']['loss'][-1]:.4g}",
            size(each["history"]["busiest_bytes_per_step"][-1]),
            number(each["seconds"]),
        ]
        for each in group
    ]
    return "".join(
        (
            page.section(f"{name}: {metric}", drawn),
            _loss(name, group),
            page.section("Figures", page.table(heads, rows, "After the last epoch.")),
        )
    )


def _loss(name: str, group: Sequence[Figures]) -> str:
    """Against seconds, where they were kept."""
    if not all("seconds" in each["history"] for each in group):
        return ""
    chart = both_sizes(
        [_by_time(each) for each in group],
        ("seconds", "training loss"),
        "training loss against seconds",
    )
    where = f"On {', '.join(dict.fromkeys(str(each['device']) for each in group))}."
    return page.section(f"{name}: loss against seconds", chart, where)


def _line(result: Figures, values: Sequence[float]) -> Series:
    points = [(float(epoch), value) for epoch, value in enumerate(values, 1)]
    return Series(_label(result), points, _is_ours(result))


def _by_time(result: Figures) -> Series:
    history: Any = result["history"]
    ends = accumulate(history["seconds"])
    points = list(zip(ends, history["loss"], strict=True))
    return Series(_label(result), points, _is_ours(result))


def _label(result: Figures) -> str:
    """The method, and what sets its run apart from another of the same method."""
    reduction = result["reduction"]
    method = str(reduction["method"])
    said = [f"{method} {percent(reduction['density'])}" if _is_ours(result) else method]
    said += [f"{name} {value}" for name, value in reduction["options"].items()]
    said += ["momentum"] * (reduction["feedback"] == "momentum")
    said += [f"seed {result['seed']}"] * (result["seed"] > 0)
    return ", ".join(said)


def _is_ours(result: Figures) -> bool:
    return not str(result["reduction"]["method"]).startswith(_COMPARED)
