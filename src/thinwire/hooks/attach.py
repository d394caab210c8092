"""attach: from a DDP model and a name to sparse gradients, in one line."""

import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup

from thinwire import catalog
from thinwire.codecs import Codec
from thinwire.collectives import Dense, GatherRows, RowCollective
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback
from thinwire.hooks.ddp import Scaler, Scope, State, hook, report
from thinwire.hooks.inspection import check_wrapped
from thinwire.reducers import OnNonfinite


def attach(
    model: nn.Module,
    method: str,
    *,
    density: float = 0.01,
    scope: Scope = "bucket",
    sparse: str | RowCollective = "gather",
    codec: str | Codec | None = None,
    feedback: str | Feedback = "residual",
    warmup: catalog.WarmupSteps = 0,
    min_size: int = 0,
    grad_scaler: Scaler | None = None,
    process_group: ProcessGroup | None = None,
    on_nonfinite: OnNonfinite = "propagate",
    timeout: float | timedelta | None = None,
    seed: int = 0,
    **options: Any,
) -> State:
    """Reduce this DDP model's gradients with a named method from now on.

    All ranks call it together, with the same arguments; a bad argument or a difference
    is an error on every rank, before anything has changed.

    Args:
        model: A model wrapped in DistributedDataParallel, without a hook yet.
        method: What `thinwire methods` lists.
        density: The fraction of the gradient that is kept, above 0 and at most 1. One
            percent was within a point of dense training with ResNet-20 on CIFAR-10, and
            within 2 % of perplexity with an LSTM on WikiText-2, but for "gtopk" with
            4 %; 0.1 % was not, though a `warmup` helped: docs/experiments/results.md.
            For a few thousand parameters set `min_size` instead.
        scope: "bucket" reduces DDP's buckets while the backward pass goes on; "model"
            reduces the whole gradient at once, when the last bucket is there.
        sparse: How gradients of `nn.Embedding(sparse=True)` are reduced, whole and
            whatever the method: "gather" (everyone's rows to everyone), "union" (a
            bitmap of rows, then their sum), "s2" (both at once, rounded to about 2^-27
            of the largest) or "cheapest"; or a collective on rows.
        codec: How lists become bytes; the method's default where None.
        feedback: "residual" remembers what was not sent; "momentum" does, and applies
            momentum 0.9 before selection (then set the optimizer's to 0), as does
            `Momentum(...)` with another: half a point of accuracy with "topk" and
            "gtopk"; "none" forgets what was not sent.
        warmup: Steps to run dense at first, or (dense steps, steps of a density ramp).
        min_size: Units of fewer elements are reduced densely.
        grad_scaler: The GradScaler in use, so that residuals follow its scale.
        process_group: The ranks to reduce over; DDP's own where None.
        on_nonfinite: "propagate" gives every rank NaN where any rank's gradient is not
            finite; "zero" gives zeros; "unchecked" does not look.
        timeout: Seconds until a silent peer is an error; DDP's group's where None.
        seed: For methods that draw random numbers.
        **options: The method's own options.

    """
    ddp = check_wrapped(model)
    try:
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"timeout is {timeout}: give seconds, more than 0")
        reducer = catalog.reducer(
            method,
            density=density,
            codec=codec,
            feedback=feedback,
            warmup=warmup,
            min_size=min_size,
            on_nonfinite=on_nonfinite,
            seed=seed,
            **options,
        )
        rows = catalog.sparse(sparse) if isinstance(sparse, str) else sparse
    except ConfigError as problem:
        # The other ranks are about to compare settings: tell them, or they would wait.
        report(problem, ddp, process_group)
        raise
    if os.environ.get("THINWIRE", "") == "dense":
        # The feedback stays: it may be where the momentum is.
        reducer = replace(reducer, collective=Dense(), codec=None)
        rows = GatherRows()
    state = State(
        ddp,
        reducer,
        scope=scope,
        sparse=rows,
        grad_scaler=grad_scaler,
        process_group=process_group,
        timeout=timeout,
    )
    ddp.register_comm_hook(state, hook)
    return state
