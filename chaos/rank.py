"""The training loop of a rank: steps under faults, and what it sees in between."""

import hashlib
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from chaos import plants
from chaos.faults import Hurt
from chaos.model import WIDTH, Batch, Given
from chaos.plan import Plan
from chaos.worker import Line, Place
from thinwire.errors import AgreementError, InconsistentStateError, ThinwireError

Sums = NDArray[np.float64]

RATE = 2.0**-10
MOMENTUM = 0.9
# Steps of a process after which it opens nothing more.
WARM = 4


class Scale:
    """The loss scale of the step, as a GradScaler gives it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.step = 0

    def get_scale(self) -> float:
        """The scale."""
        return self._plan.scales[self.step]


class Rank:
    """A rank from the last complete save to the end, or to an error."""

    def __init__(self, line: Line, plan: Plan, place: Place) -> None:
        self.line, self.plan, self.place = line, plan, place
        self.size = plan.ranks[place.life]
        self.saving = False
        if place.plant in plants.AT_START and place.rank == 0:
            plants.AT_START[place.plant]()
        self.scale = Scale(plan)
        self.model = DDP(Given(plan), bucket_cap_mb=plan.bucket_mb)
        self.state = thinwire.attach(
            self.model,
            plan.method,
            **plan.options,
            grad_scaler=self.scale,
            timeout=plan.timeout,
            warn=False,
        )
        self.hurt = Hurt(line, self.state, place.port, plan.steps - 3)
        self.first = self._restore()
        self.before = self._look()
        self._forget_sums()

    def train(self) -> None:
        """Take all steps, then say that it is over, or what went wrong."""
        opened = 0
        for step in range(self.first, self.plan.steps):
            self.scale.step = self.hurt.step = step
            begin = time.monotonic()
            try:
                self._prepare(step)
                self._step(step)
                self._report(step)
            except ThinwireError as error:
                self._say_error(step, error, time.monotonic() - begin)
                return
            except Exception:
                self.line.say("crash", (step, traceback.format_exc()))
                return
            if self.place.plant in plants.IN_STEPS and self.place.rank == 0:
                plants.IN_STEPS[self.place.plant](self.model, step)
            if step == self.first + WARM:
                opened = self._open_files()
        self.line.say("over", self._open_files() - opened if opened else 0)

    def _prepare(self, step: int) -> None:
        """What is done before a step: density, saves, and the step's own faults."""
        here = (self.place.rank,)
        if self.state.density is not None:
            for fault in self.plan.at(step, "density"):
                self.state.density = fault.detail
            for fault in self.plan.at(step, "disagreement"):
                self._disagree(step, fault.detail, here=fault.ranks == here)
        for _ in self.plan.at(step, "save"):
            self._save(step)
        for fault in self.plan.at(step, "stop", "cut", "slow host"):
            if fault.ranks == here:
                self.hurt.suffer(fault)
        self._end(step)

    def _end(self, step: int) -> None:
        """Begin the fault that ends this life, if it is due."""
        ending = self.plan.endings[self.place.life]
        # In the second step of a process DDP compares its buckets between ranks, by
        # calls and with a timeout of its own.
        if ending is None or max(ending.step, self.first + 2) != step:
            return
        here = self.place.rank in ending.ranks
        if here:
            self.hurt.suffer(ending)
        if ending.kind == "kill in a save":
            self._save(step)
            if here:  # it has got to the end of the save
                self.hurt.suffer(replace(ending, kind="kill", delay=0.0))

    def _step(self, step: int) -> None:
        plan = self.plan
        batch = Batch.of(plan, self.place.rank, step)
        bad = any(True for _ in plan.at(step, "bad batch"))
        trace = self._digest() if bad and plan.every == 1 else ""
        gradients = self._backward(batch)
        finite = all(bool(g.isfinite().all()) for g in gradients)
        if bad and finite and any(bool(g.any()) for g in gradients):
            self.line.say("wrong", (step, "a bad batch was applied"))
        if not bad and not finite:
            self.line.say("wrong", (step, "a good batch was skipped"))
        if bad:
            if trace and trace != self._digest():
                self.line.say("wrong", (step, "a bad batch left a trace"))
            return
        self._add_up(batch, gradients)
        with torch.no_grad():
            for weight, gradient in zip(
                self.model.parameters(), gradients, strict=True
            ):
                weight.sub_(gradient, alpha=RATE)

    def _backward(self, batch: Batch) -> list[Tensor]:
        """The unscaled mean gradients, dense; NaN where they are not finite."""
        self.model.zero_grad()
        scale = self.scale.get_scale()
        (self.model(batch) * scale).backward()
        found = []
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            found.append(parameter.grad.to_dense() / scale)
        return found

    def _disagree(self, step: int, density: float, *, here: bool) -> None:
        """Set another density on one rank: all must refuse, and nothing may change."""
        right = self.state.density
        assert right is not None
        if right == density:
            return
        trace = self._digest()
        refused = False
        try:
            self.state.density = density if here else right
            # A bad one may be skipped before anything is compared.
            self._backward(Batch.of(self.plan, self.place.rank, step, good=True))
        except AgreementError:
            refused = True
        self.state.density = right
        if not refused:
            self.line.say("wrong", (step, "ranks with two densities went on"))
        if trace != self._digest():
            self.line.say("wrong", (step, "a refused step left a trace"))

    def _add_up(self, batch: Batch, gradients: list[Tensor]) -> None:
        """Add what this rank gave and what it got to the sums since the last look."""
        given, table = batch.flat(self.plan, self.plan.options.get("clip"))
        if self.plan.options["feedback"] == "momentum":
            given = given + MOMENTUM * self.before["momentum"]
        count = len(self.plan.sizes)
        got = torch.cat([g.double() for g in gradients[:count]]).numpy()
        self.given += given
        self.got += self.size * got
        self.table_given += table
        if self.plan.rows:
            self.table_got += self.size * gradients[count].double().numpy()

    def _report(self, step: int) -> None:
        """Say the weights and, every `plan.every` steps, what is remembered."""
        plan = self.plan
        self.line.say("step", (step, self._weights()))
        if (step + 1) % plan.every and step + 1 < plan.steps:
            return
        after = self._look()
        look = {
            "step": step,
            "before": self.before["residual"],
            "after": after["residual"],
            "given": self.given,
            "got": self.got,
            "table given": self.table_given,
            "table got": self.table_got,
        }
        self.line.say("look", look)
        self.before = after
        self._forget_sums()

    def _look(self) -> dict[str, Sums]:
        """What this rank remembers, unscaled, in the order of the parameters."""
        entries = self._entries()
        found = {}
        for kind in ("residual", "momentum"):
            held = entries.get(kind, {})
            names = [f"dense{number}" for number in range(len(self.plan.sizes))]
            parts = [
                held[name].double().numpy() / entries["scale"]
                if name in held
                else np.zeros(size)
                for name, size in zip(names, self.plan.sizes, strict=True)
            ]
            found[kind] = np.concatenate(parts)
        return found

    def _forget_sums(self) -> None:
        size, rows = sum(self.plan.sizes), max(self.plan.rows, 1)
        self.given, self.got = np.zeros(size), np.zeros(size)
        self.table_given = np.zeros((rows, WIDTH))
        self.table_got = np.zeros((rows, WIDTH))

    def _entries(self) -> Mapping[str, Any]:
        saved = self.state.state_dict()
        key = f"rank {self.place.rank} of {self.size}"
        entries: Mapping[str, Any] = saved[key]
        return entries

    def _digest(self) -> str:
        """All that a checkpoint would keep, as a hash."""
        return _hash([self._entries()])

    def _save(self, step: int) -> None:
        """Save on all ranks, and say what this one holds."""
        self.line.say("save", {"step": step, **self._held()})
        self.saving = True
        also = {
            "model": self.model.module.state_dict(),
            "life": self.place.life,
            "step": step,
        }
        self.state.save(self._folder, also)
        self.saving = False
        self.line.say("saved", step)

    def _restore(self) -> int:
        """Load the last complete save; return the step to go on with."""
        saved = self.state.load(self._folder, required=False)
        if saved is None:
            self.line.say("load", {"save": None})
            return 0
        self.model.module.load_state_dict(saved["model"])
        life, step = int(saved["life"]), int(saved["step"])
        self.line.say("load", {"save": (life, step), **self._held()})
        return step

    @property
    def _folder(self) -> Path:
        return self.place.folder / "saved"

    def _held(self) -> dict[str, Any]:
        """What must come through a save: of this rank, and the weights of all."""
        digest, weights = self._digest(), self._weights()
        return {"digest": digest, "weights": weights, **self._look()}

    def _weights(self) -> str:
        return _hash([p.detach() for p in self.model.parameters()])

    def _say_error(self, step: int, error: ThinwireError, seconds: float) -> None:
        """Say which error it was, and whether the state refuses to be used after it."""
        refused = False
        try:
            self.state.state_dict()
        except InconsistentStateError:
            refused = True
        said = {
            "step": step,
            "type": type(error).__name__,
            "ranks": getattr(error, "ranks", None),
            "message": str(error),
            "seconds": seconds,
            "refused": refused,
            "saving": self.saving,
        }
        self.line.say("error", said)

    def _open_files(self) -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many


def _hash(parts: list[Any]) -> str:
    """A hash of tensors, of mappings of them, and of plain values."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Mapping):
            found.update(_hash([part[key] for key in sorted(part)]).encode())
        elif isinstance(part, Tensor):
            found.update(part.contiguous().numpy().tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()[:16]
