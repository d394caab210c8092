"""The options of `attach`: their types, and what is refused.

An option of one method is checked by the class that has it as a field.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from torch.distributed import ProcessGroup

from thinwire.arguments import is_number, is_whole
from thinwire.catalog import WarmupSteps
from thinwire.codecs import Codec
from thinwire.collectives import Collective, RowCollective
from thinwire.collectives.placement import NodesOption
from thinwire.cost import Link
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback
from thinwire.groups.own_groups import is_known
from thinwire.reducers import OnNonfinite

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Scope = Literal["bucket", "model"]


class MethodOptions(TypedDict, total=False):
    """Options of single methods: the cards in docs/reference say which take which."""

    variant: str
    teams: int | str
    gather: str
    partition: str
    scatter: str
    link: Link | None
    rows: int
    columns: int | str | None
    sketched: int | None
    threshold_every: int
    regions_every: int
    candidates: int | str | Collective | Sequence[str | Collective]
    rounds: int
    sum: str
    recover: str
    block: int
    estimate: str
    index: str
    value: str
    fpr: float | None
    granularity: str
    width: int
    decode: str
    visit: int
    recheck: int


class Options(MethodOptions, total=False):
    """Options of all methods, and those of single methods."""

    codec: str | Codec | None
    feedback: str | Feedback
    warmup: WarmupSteps
    min_size: int
    nodes: NodesOption | None
    on_nonfinite: OnNonfinite
    seed: int
    sparse: str | RowCollective
    clip: float | None
    warn: bool
    replicate_group: ProcessGroup
    mesh: "DeviceMesh"
    overlap: bool


Check = Callable[[Any], bool]

MOST_SECONDS = 1e7  # a few months; backends count milliseconds


def seconds(timeout: float | timedelta | None) -> float | None:
    """A timeout in seconds: no number of numpy's, which a timedelta does not take."""
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    return None if timeout is None else float(timeout)


def refuse_wrong(**options: object) -> None:
    """Raise a `ConfigError` if an option is not what `RULES` say."""
    for name, value in options.items():
        if name in RULES and not RULES[name][0](value):
            raise ConfigError(f"{name} is {value!r:.300}: {RULES[name][1]}")


def _instance(*kinds: type) -> Check:
    return lambda value: isinstance(value, kinds)


def _has(*methods: str) -> Check:
    """An object with these methods; a class has them too, but is none."""
    return lambda value: (
        not isinstance(value, type)
        and all(callable(getattr(value, method, None)) for method in methods)
    )


def _either(*checks: Check) -> Check:
    return lambda value: any(fits(value) for fits in checks)


def _choice(literal: object) -> Check:
    choices = get_args(literal)
    return lambda value: isinstance(value, str) and value in choices


def _none(value: object) -> bool:
    return value is None


def _steps(value: object) -> bool:
    return is_whole(value, least=0)


def _warmup(value: object) -> bool:
    match value:
        case (dense, ramp) if isinstance(value, tuple):
            return _steps(dense) and _steps(ramp)
        case _:
            return _steps(value) or (isinstance(value, str) and value == "auto")


def _nodes(value: object) -> bool:
    """What the class refuses in detail."""
    return is_whole(value) or isinstance(value, str | list | tuple)


def _timeout(value: Any) -> bool:
    given = value.total_seconds() if isinstance(value, timedelta) else value
    return is_number(given, least=0.001, most=MOST_SECONDS)


RULES: Mapping[str, tuple[Check, str]] = {
    "method": (
        _instance(str),
        "give the name of a method, as `thinwire methods` lists them",
    ),
    "scope": (_choice(Scope), "choose 'bucket' or 'model'"),
    "grad_scaler": (
        _either(_none, _has("get_scale")),
        "give the GradScaler in use, or None",
    ),
    "process_group": (
        _either(_none, is_known),
        "give a process group that this rank is in, or None for DDP's own",
    ),
    "timeout": (
        _either(_none, _timeout),
        "give seconds or a timedelta, from a millisecond to 10 million seconds, or "
        "None for that of DDP's group",
    ),
    "codec": (
        _either(_none, _instance(str, Codec)),
        "give a name such as 'rice+log4', a codec such as Split(Rice(), LogQuant(4)), "
        "or None for the default",
    ),
    "feedback": (
        _either(_instance(str), _has("init", "accumulate", "settle")),
        "choose 'residual', 'momentum' or 'none', or give one such as Momentum(0.8)",
    ),
    "warmup": (
        _warmup,
        "give a number of dense steps, a tuple (dense steps, steps of a density ramp), "
        "or 'auto'",
    ),
    "min_size": (
        _steps,
        "give the number of elements from which a unit is compressed, 0 or more",
    ),
    "nodes": (
        _either(_none, _nodes),
        "give 'auto', the number of consecutive ranks on each node, the ranks of every "
        "node, such as [[0, 1], [2, 3]], or None",
    ),
    "seed": (is_whole, "give an integer"),
    "sparse": (
        _either(_instance(str), _has("sum_rows")),
        "give 'gather', 'union', 's2', 'cheapest', or a collective on rows such as "
        "S2(decode='median')",
    ),
    "clip": (
        _either(_none, lambda value: is_number(value, above=0.0)),
        "give the largest norm of a worker's gradient, a finite number above 0, or "
        "None",
    ),
    "warn": (_instance(bool), "give True or False"),
    "overlap": (_instance(bool), "give True or False"),
    "link": (
        _either(_none, _instance(Link)),
        "give a link such as Link(latency=50e-6, bandwidth=125e6), or None",
    ),
}
