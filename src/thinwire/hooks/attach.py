"""attach: from a model and a name to sparse gradients, in one line."""

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Unpack, cast

from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from thinwire import catalog
from thinwire.collectives import Dense, GatherRows
from thinwire.hooks.agreement import told
from thinwire.hooks.ddp import DDPState, hook
from thinwire.hooks.inspection import DDPModel, sparse_names, unwrapped
from thinwire.hooks.one_process import OneProcessState, in_one_process
from thinwire.hooks.optimizer_check import OptimizerCheck
from thinwire.hooks.options import Options, Scope, refuse_wrong
from thinwire.hooks.parts import Scaler
from thinwire.hooks.sharded import sharded_model, sharded_state
from thinwire.hooks.state import State
from thinwire.reducers import Pipeline


def attach(
    model: nn.Module,
    method: str,
    *,
    density: float = 0.01,
    scope: Scope = "bucket",
    grad_scaler: Scaler | None = None,
    process_group: ProcessGroup | None = None,
    timeout: float | timedelta | None = None,
    **options: Unpack[Options],
) -> State:
    """Reduce the gradients of a model with a named method from now on.

    All ranks call it together with the same arguments. A bad argument or a difference
    is an error on every rank, and nothing has changed.

    Args:
        model: A model wrapped in DistributedDataParallel, without a hook yet, or
            sharded by FSDP2's `fully_shard`; or what `torch.compile` or Fabric made of
            it. With one process it need not be wrapped: then nothing is reduced, and
            the methods of the state work.
        method: What `thinwire methods` lists.
        density: The fraction of the gradient that is kept, above 0 and at most 1. One
            percent was within a point of dense training with ResNet-20 on CIFAR-10, and
            within 2 % of perplexity with an LSTM on WikiText-2, but for "gtopk" with
            4 %; 0.1 % was not, though a `warmup` helped: docs/experiments/results.md.
            For a few thousand parameters set `min_size` instead. Under Adam, use
            `thinwire.AdamW(..., state=state)` and `warmup="auto"`: docs/guides/adamw.md
        scope: "bucket" reduces DDP's buckets while the backward pass goes on; "model"
            reduces the whole gradient at once, when the last bucket is there.
        grad_scaler: The GradScaler in use, so that residuals follow its scale.
        process_group: The ranks to reduce over; DDP's own if None.
        timeout: Seconds until a silent peer is an error; that of DDP's group if None.
        **options: Options of the method, and for all methods:
            codec: How lists become bytes, such as "elias-fano+bfloat16".
            feedback: "residual" keeps what was not sent; "momentum" also applies
                momentum 0.9 before selection (then set the optimizer's to 0), or
                another with `Momentum(...)`: half a point of accuracy with "topk" and
                "gtopk"; "none" forgets what was not sent.
            warmup: The number of dense steps at first, or (dense steps, steps of a
                density ramp); or "auto", a density that falls from 1 as training gets
                longer, without numbers to choose.
            min_size: Units of fewer elements are reduced densely.
            nodes: Where links inside a node are much faster than those between nodes:
                "auto" finds nodes by what torchrun sets and by host names; or the
                number of consecutive ranks on each; or the ranks of every node. A node
                sums densely, and the method runs between nodes: docs/guides/nodes.md.
                With one node, or one rank on each, nothing changes.
            on_nonfinite: If any rank's gradient is not finite, "propagate" gives every
                rank NaN and "zero" gives zeros; "unchecked" does not check.
            seed: For methods that draw random numbers.
            sparse: How gradients of `nn.Embedding(sparse=True)` are reduced, whole and
                with any method: "gather" (the rows of all ranks to all ranks), "union"
                (a bitmap of rows, then their sum), "s2" (both at once, rounded to about
                2^-27 of the largest) or "cheapest"; or a collective on rows.
            mesh: Of a model sharded by `fully_shard` over one dimension of a mesh: this
                mesh, whose other dimension is that of replicas: docs/guides/hsdp.md.
            replicate_group: Instead of `mesh`: the ranks that have the same shard.
            overlap: Of a sharded model: False reduces when `state.reduce()` is called,
                and not in the backward pass.
            clip: The largest norm of this worker's own gradient, which is clipped
                before it is remembered. Give the bound of `clip_grad_norm_`, and leave
                that call out: after `backward` it would cut sums of many steps for
                good. Reductions then start with the last bucket.
            warn: Whether to warn, on rank 0, if a plain Adam steps on sparse
                deliveries, if an optimizer was resumed and the state was not, and if
                the run is frozen: all steps skipped, nothing delivered, or a residual
                that keeps growing.

    """
    environment = os.environ.get("THINWIRE", "")
    local = unwrapped(model)
    sharded = sharded_model(local, process_group, options)
    ddp = cast(DistributedDataParallel, local)  # if not, the check below refuses it
    here = sharded or DDPModel(ddp, process_group)
    rows, clip = options.pop("sparse", "gather"), options.pop("clip", None)
    warn = options.pop("warn", True)
    warns = warn and environment != "quiet"
    with told(here.meeting):
        alone = sharded is None and in_one_process(local)
        if not alone:
            here.check()
        refuse_wrong(method=method, warn=warn, **options)
        reducer = _reducer(method, density, options)
    if environment == "dense":
        # The feedback stays: the momentum may be in it.
        reducer = replace(reducer, collective=Dense(), codec=None)
        rows = GatherRows()
    common: dict[str, Any] = {
        "scope": scope,
        "grad_scaler": grad_scaler,
        "timeout": timeout,
        "clip": clip,
    }
    if alone:
        return OneProcessState(local, reducer, warns=warns, sparse=rows, **common)
    state: State = (
        DDPState(ddp, reducer, sparse=rows, process_group=process_group, **common)
        if sharded is None
        else sharded_state(sharded, reducer, **common)
    )
    try:
        if sharded is None:
            ddp.register_comm_hook(state, hook)
        if warns and state.leads:
            _watch(local, state)
    except BaseException:
        state.close()
        raise
    return state


def _reducer(method: str, density: float, options: Options) -> Pipeline:
    if "seed" in options:
        options["seed"] = int(options["seed"])  # numpy's would overflow
    return catalog.reducer(method, density=density, **options)


def _watch(model: nn.Module, state: State) -> None:
    """Warn of what training shows, as `warn` says."""
    state.watch_progress()
    if (state.density or 1.0) < 1.0:
        state.on_close(_check_optimizer(model, state))


def _check_optimizer(model: nn.Module, state: State) -> Callable[[], None]:
    """Warn of a plain Adam, except for rows, which are delivered whole.

    And of an optimizer that was resumed without the state. Returns what ends the check.
    """
    reference = weakref.ref(state)

    def forgot() -> bool:
        found = reference()
        return found is not None and found.starts_anew

    rows = sparse_names(getattr(model, "module", model))  # a sharded one has none
    sent_sparsely = [p for name, p in state.parameters.items() if name not in rows]
    if not sent_sparsely:
        return lambda: None
    return OptimizerCheck(model, sent_sparsely, forgot).end
