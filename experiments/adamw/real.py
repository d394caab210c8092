"""The part of the page on real processes: a table for every number of them."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from experiments.adamw.spikes import spikes

INTRODUCTION = """## Real processes

A GPT of 0.4 M parameters on the characters of tiny Shakespeare, 600 steps, on a
processor: `torchrun` starts the processes, the loop is what users write. Two
micro-batches make a step, the first under `no_sync`. The norm is clipped at 1: by
`clip_grad_norm_` after the backward pass unless the label says otherwise. "Clipped by
worker": each worker's own gradient, to 1/sqrt(P) of the bound, before it is remembered.
"Clipped by attach" is the option of `thinwire.attach`.

    torchrun --standalone --nproc-per-node 2 -m experiments.adamw.loop --data DATA
"""


def section(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Everything that is known of real processes; nothing where there are no runs."""
    if results:
        yield INTRODUCTION
    for ranks in sorted({result["ranks"] for result in results}):
        yield f"{ranks} processes:\n"
        yield _table([result for result in results if result["ranks"] == ranks])


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    rows: dict[str, dict[int, Mapping[str, Any]]] = {}
    for result in results:
        rows.setdefault(result["label"], {})[result["seed"]] = result
    seeds = sorted({result["seed"] for result in results})
    metric = results[0]["metric_name"]
    heads = ["method", f"{metric}, seed {seeds[0]}", *(f"seed {s}" for s in seeds[1:])]
    heads += ["against dense", "bytes a step", "spikes"]
    dense = rows.get("dense", {})
    return "\n".join(
        [
            f"| {' | '.join(heads)} |",
            f"| --- |{' ---: |' * (len(seeds) + 2)} --- |",
            *(f"| {' | '.join(_cells(n, r, dense, seeds))} |" for n, r in rows.items()),
            "",
        ]
    )


def _cells(
    label: str,
    row: Mapping[int, Mapping[str, Any]],
    dense: Mapping[int, Mapping[str, Any]],
    seeds: Sequence[int],
) -> Iterator[str]:
    yield label
    for seed in seeds:
        yield f"{row[seed]['result']:.3f}" if seed in row else "-"
    both = row.keys() & dense.keys()
    if both and label != "dense":
        ratios = [row[seed]["result"] / dense[seed]["result"] for seed in both]
        yield f"{100 * (mean(ratios) - 1):+.2f} %"
    else:
        yield "-"
    yield f"{mean(each['bytes_per_step'] for each in row.values()):,.0f}"
    found = [spike for each in row.values() for spike in spikes(each["step_loss"])]
    lasting = sum(not spike.recovered for spike in found)
    yield f"{len(found)}, {lasting} not recovered" if found else "none"
