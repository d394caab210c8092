"""Steps of parameters of which elements wait."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from thinwire import kernels
from thinwire.kernels import AdamRules, AdamTensors
from thinwire.optim import moments
from thinwire.optim.deliveries import Told, Way
from thinwire.optim.members import Member
from thinwire.optim.rows import update_rows_
from thinwire.optim.rules import Cohort, rules_of


class Waiting:
    """Steps in which the delivered elements of each parameter are in the same way."""

    def __init__(
        self, named: Sequence[tuple[Member, Way]], told: Told | None, *, whole: bool
    ) -> None:
        self._members = [member for member, _ in named]
        self._params = [member.param for member in self._members]
        self._copied = [each for each in self._members if each.work is not each.param]
        self._rows = [member for member in self._members if member.rows]
        self._steps = _count_together(self._members)
        self._cohorts = _cohorts(self._members)
        # Of these, every element is delivered.
        ended = [each for each in self._members if whole and not each.rows]
        self._ended = {id(each.cohort): each.cohort for each in ended}.values()
        self._single = [each for each in ended if each.param.dtype == torch.float32]
        self._calls = []
        for way in ("listed", "nonzero", "all"):
            mine = [each for each, its in named if its == way and not each.rows]
            if mine:
                self._calls.append(_Call(way, mine, told))
        self._versions = self._versions_now()

    @property
    def is_current(self) -> bool:
        """Whether nobody else has written into the step tensors."""
        return self._versions == self._versions_now()

    @property
    def ends(self) -> bool:
        """Whether states are torch's after a step, because no element waits."""
        return bool(self._single)

    def step(self, grads: Sequence[Tensor], told: Told | None) -> None:
        """Do a step; `grads` are those of all parameters, aligned."""
        self._begin()
        rules = rules_of(self._cohorts, _which(()))
        for call in self._calls:
            call.run(grads, rules, told)
        for member in self._rows:
            one = rules._replace(which=_which([member]))
            grad = grads[member.place].coalesce()
            update_rows_(member.work, grad, member.state, one)
        if any(cohort.is_due for cohort in self._cohorts):
            self._decay(rules)
        self._finish()

    def _begin(self) -> None:
        for cohort in self._cohorts:
            cohort.begin()
        for steps in self._steps:
            steps.add_(1)
        self._versions = self._versions_now()
        for member in self._copied:
            member.work.copy_(member.param)

    def _decay(self, rules: AdamRules) -> None:
        """Apply decay that has been pending for long."""
        due = [member for member in self._members if member.cohort.is_due]
        kernels.decay_(_tensors(due), rules._replace(which=_which(due)))
        for member in due:
            member.cohort.pending.clear()

    def _finish(self) -> None:
        for member in self._copied:
            member.param.copy_(member.work)
        increment_version(self._params)  # kernels write without autograd's knowledge
        for cohort in self._ended:
            cohort.pending.clear()
        for member in self._single:
            moments.as_torch(member.param, member.state)

    def _versions_now(self) -> list[int]:
        return [steps._version for steps in self._steps]  # noqa: SLF001


class _Call:
    """A call of the kernels for parameters whose delivered elements are in one way."""

    def __init__(self, way: Way, members: Sequence[Member], told: Told | None) -> None:
        self._way = way
        self._places = [member.place for member in members]
        self._which = _which(members)
        self._tensors = _tensors(members)
        keys = [member.key for member in members]
        self._pieces = [] if told is None else told.pieces(keys)

    def run(self, grads: Sequence[Tensor], rules: AdamRules, told: Told | None) -> None:
        mine = rules._replace(which=self._which)
        with self._tensors.given([grads[place] for place in self._places]) as tensors:
            if self._way == "listed" and told is not None:
                kernels.adamw_at_(tensors, mine, told.lists(self._pieces))
            else:
                kernels.adamw_(tensors, mine, everything=self._way == "all")


def _count_together(members: Sequence[Member]) -> list[Tensor]:
    """Make step tensors views of one tensor, which counts for all at once.

    There is one for each device on which steps are.
    """
    devices = dict.fromkeys(member.state["step"].device for member in members)
    found = []
    for device in devices:
        mine = [m for m in members if m.state["step"].device == device]
        steps = torch.stack([member.state["step"].float() for member in mine])
        for number, count in enumerate(steps.tolist()):
            member = mine[number]
            member.state["step"] = steps[number]
            member.count = int(count)
        found.append(steps)
    return found


def _cohorts(members: Sequence[Member]) -> list[Cohort]:
    """Give parameters their records and cohorts; rows may stay in theirs longer."""
    known: dict[object, Cohort] = {}
    for member in members:
        state, group = member.state, member.group
        member.records = moments.in_records(member.param, state, member.count)
        pending = state.get("pending_decay", ())
        key = id(group), member.count, tuple(pending), member.rows
        if key not in known:
            known[key] = Cohort(len(known), group, member.count, [*pending])
        member.cohort = known[key]
        state["pending_decay"] = member.cohort.pending
    return list(known.values())


def _which(members: Sequence[Member]) -> Tensor:
    return torch.tensor([each.cohort.number for each in members], dtype=torch.int32)


def _tensors(members: Sequence[Member]) -> AdamTensors:
    """The tensors of a call; parameters stand for gradients until these are given."""
    works = [member.work for member in members]
    return AdamTensors.of(works, works, [member.records for member in members])
