"""The objects that names stand for, in `attach` and on the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import signature
from typing import Any, Literal, TypeVar

from thinwire.choosers import Auto, AutoWarmup, BySize, Warmup
from thinwire.choosers.on_nodes import on_nodes
from thinwire.codecs import (
    QSGD,
    BFloat16,
    Bitmap,
    Bloom,
    Codec,
    Deflate,
    DeltaVarint,
    EliasFano,
    FitDExp,
    FitPoly,
    Float16,
    Float32,
    Huffman,
    IndexCodec,
    Int8,
    Int32,
    LogQuant,
    MinSize,
    Rice,
    RunLength,
    Split,
    Tiers,
    ValueCodec,
    Zstd,
)
from thinwire.collectives import (
    BF16,
    S2,
    AllGather,
    Collective,
    Dense,
    GatherRows,
    GsSGD,
    GTopK,
    MinBytes,
    OkTopK,
    RowCollective,
    SparDL,
    TopKDSA,
    UnionReduce,
)
from thinwire.collectives.collective import check_density
from thinwire.collectives.placement import NodesOption
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, Forget, Momentum, Residual
from thinwire.reducers import Pipeline

T = TypeVar("T")

WarmupSteps = int | tuple[int, int] | Literal["auto"]


INDEX_CODECS: Mapping[str, IndexCodec] = {
    "int32": Int32(),
    "bitmap": Bitmap(),
    "elias-fano": EliasFano(),
    "rice": Rice(),
    "varint": DeltaVarint(),
    "run-length": RunLength(),
    "huffman": Huffman(),
    "bloom-p0": Bloom("p0"),
    "bloom-p1": Bloom("p1"),
    "bloom-p2": Bloom("p2"),
    "bloom-leftmost": Bloom("leftmost"),
    "bloom-naive": Bloom("naive"),
}

VALUE_CODECS: Mapping[str, ValueCodec] = {
    "float32": Float32(),
    "bfloat16": BFloat16(),
    "float16": Float16(),
    "int8": Int8(),
    **{f"log{bits}": LogQuant(bits) for bits in range(3, 9)},
    **{f"tiers{share}": Tiers(share) for share in (2, 4, 8)},
    "qsgd": QSGD(),
    "deflate": Deflate(),
    "zstd": Zstd(),
    "fit-poly": FitPoly(),
    "fit-dexp": FitDExp(),
}

DEFAULT_CODEC = "elias-fano+bfloat16"


def codec(name: str) -> Split:
    """The codec of this name: an index codec's, a plus, a value codec's; or "raw".

    >>> codec("rice+log4") == Split(Rice(), LogQuant(4))
    True
    >>> codec("raw") == codec("int32+float32") == Split()
    True
    """
    index, _, value = ("int32+float32" if name == "raw" else name).partition("+")
    if not value:
        raise ConfigError(
            f"unknown codec {name!r}: write an index codec, a plus and a value codec, "
            f"for example {DEFAULT_CODEC!r}, or 'raw'"
        )
    return Split(
        _named(index, INDEX_CODECS, "index codec"),
        _named(value, VALUE_CODECS, "value codec"),
    )


def codec_name(codec: Codec) -> str:
    """The name of a codec, or its repr if the catalog does not make it.

    >>> codec_name(Split(EliasFano(), BFloat16()))
    'elias-fano+bfloat16'
    """
    if isinstance(codec, MinSize):
        return codec_name(codec.codec)
    if not isinstance(codec, Split):
        return repr(codec)
    halves = [
        [name for name, known in names.items() if known == half]
        for names, half in ((INDEX_CODECS, codec.index), (VALUE_CODECS, codec.value))
    ]
    return "+".join(half[0] for half in halves) if all(halves) else repr(codec)


def deepreduce(
    index: str = "bloom-p2", value: str = "qsgd", fpr: float | None = None
) -> Codec:
    """DeepReduce's codecs, by default Bloom filter P2 and QSGD; small vectors raw.

    The other published combinations: `index` "bloom-naive", "bloom-p0", "bloom-p1",
    "run-length", "huffman" or "int32", `value` "fit-poly", "fit-dexp", "deflate",
    "qsgd" or "float32". `fpr` is the filter's rate of false positives.
    """
    chosen = _named(index, INDEX_CODECS, "index codec")
    if fpr is not None:
        if not isinstance(chosen, Bloom):
            raise ConfigError(f"fpr is {fpr}, and {index!r} is not a Bloom filter")
        chosen = Bloom(chosen.policy, fpr)
    return MinSize(1001, Split(chosen, _named(value, VALUE_CODECS, "value codec")))


def default_codec() -> Codec:
    """The codec of lists where no other is given."""
    return codec(DEFAULT_CODEC)


@dataclass(frozen=True, slots=True)
class Method:
    """A collective by name, a line that says what it is good for, and its codec."""

    collective: type[Collective]
    summary: str
    codec: Callable[..., Codec] = default_codec

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options besides the density."""
        own = tuple(name for name in self._fields if name != "density")
        return own + self._codec_options

    @property
    def _fields(self) -> tuple[str, ...]:
        known = fields(self.collective)  # type: ignore[arg-type]
        return tuple(f.name for f in known if f.init)

    @property
    def _codec_options(self) -> tuple[str, ...]:
        return tuple(signature(self.codec).parameters)

    def build(self, density: float, options: Mapping[str, Any]) -> Collective:
        """The collective at a density, with options of its own."""
        chosen = {"density": density} if "density" in self._fields else {}
        own = {n: v for n, v in options.items() if n not in self._codec_options}
        if self.collective is Auto and "candidates" in own:
            own["candidates"] = _candidates(own["candidates"])
        return self.collective(**chosen, **own)

    def build_codec(self, options: Mapping[str, Any]) -> Codec:
        """The method's codec, with options of its own."""
        return self.codec(
            **{n: v for n, v in options.items() if n in self._codec_options}
        )


METHODS: Mapping[str, Method] = {
    "dense": Method(Dense, "the library's all-reduce: what plain DDP does"),
    "bf16": Method(BF16, "everything in bfloat16, the rounding remembered"),
    "topk": Method(AllGather, "everyone's top k to everyone: few workers"),
    "gtopk": Method(GTopK, "about the top k of the sum, merged in pairs"),
    "spardl": Method(SparDL, "block by block, in log P rounds: the fewest bytes"),
    "ok-topk": Method(OkTopK, "what reaches a common threshold: for comparison"),
    "topk-dsa": Method(TopKDSA, "topk through owners of regions: for comparison"),
    "gs-sgd": Method(GsSGD, "the top k of the sum, found in the sum of sketches"),
    "deepreduce": Method(
        AllGather, "topk with DeepReduce's codecs: for comparison", deepreduce
    ),
    "union": Method(
        UnionReduce, "all that any rank selects, exactly: similar gradients"
    ),
    "s2": Method(S2, "the same by a sketch, in half the rounds"),
    "cheapest": Method(MinBytes, "gather, union, s2 or dense, by the last step"),
    "auto": Method(Auto, "dense, bf16 or spardl, whichever is fastest when tried"),
}

FEEDBACKS: Mapping[str, Feedback] = {
    "residual": Residual(),
    "momentum": Momentum(),
    "none": Forget(),
}

SPARSE: Mapping[str, RowCollective] = {
    "gather": GatherRows(),
    "union": UnionReduce(),
    "s2": S2(),
    "cheapest": MinBytes(),
}


def sparse(name: str) -> RowCollective:
    """How naturally sparse gradients are reduced, by name.

    >>> sparse("gather")
    GatherRows()
    """
    return _named(name, SPARSE, "way to reduce sparse gradients")


def method(name: str) -> Method:
    """The method of this name.

    >>> method("topk").collective.__name__
    'AllGather'
    >>> method("top-k")
    Traceback (most recent call last):
    thinwire.errors.ConfigError: unknown method 'top-k': did you mean 'topk' or ...
    """
    return _named(name, METHODS, "method")


def reducer(
    name: str,
    *,
    density: float = 0.01,
    codec: str | Codec | None = None,
    feedback: str | Feedback = "residual",
    warmup: WarmupSteps = 0,
    min_size: int = 0,
    nodes: NodesOption | None = None,
    **options: Any,
) -> Pipeline:
    """A reducer from names and options, as `thinwire.attach` takes them.

    Of `options`, `on_nonfinite` and `seed` are the pipeline's, others the method's.

    >>> reducer("topk", density=0.001, warmup=100).collective
    Warmup(then=AllGather(density=0.001), dense=100, ramp=0, start=0.25)
    """
    chosen = method(name)
    check_density(density)  # also for methods that keep everything
    own = {n: options.pop(n) for n in ("on_nonfinite", "seed") if n in options}
    for option in options:
        if option not in chosen.options:
            known = (*chosen.options, *_OPTIONS)
            raise ConfigError(
                f"unknown option {option!r} of {name!r}{_hint(option, known)}"
            )
    collective = on_nodes(chosen.build(density, options), nodes)
    by_size = BySize(min_size, collective) if min_size else collective
    collective = _warmed_up(by_size, warmup)
    return Pipeline(
        collective,
        _codec_for(collective, chosen, codec, options),
        _named(feedback, FEEDBACKS, "feedback")
        if isinstance(feedback, str)
        else feedback,
        **own,
    )


# Options of `attach` and `reducer` for every method, to suggest to a user.
_OPTIONS = (
    *("density", "scope", "sparse", "codec", "feedback", "warmup", "min_size"),
    *("nodes", "grad_scaler", "process_group", "on_nonfinite", "timeout", "seed"),
    *("clip", "warn"),
)


def _warmed_up(collective: Collective, warmup: WarmupSteps) -> Collective:
    if isinstance(warmup, str):
        if warmup != "auto":
            raise ConfigError(f"warmup is {warmup!r}: give numbers of steps, or 'auto'")
        return AutoWarmup(collective)
    dense, ramp = warmup if isinstance(warmup, tuple) else (warmup, 0)
    return Warmup(collective, dense, ramp) if dense or ramp else collective


def _candidates(given: Any) -> tuple[Collective, ...]:
    """The candidates of `auto`: one or several names or collectives."""
    several = isinstance(given, list | tuple)
    return tuple(map(_candidate, given if several else (given,)))


def _candidate(given: str | Collective) -> Collective:
    """A candidate of `auto`, which sets its density."""
    if not isinstance(given, str):
        return given  # Auto refuses what is no collective
    named = _named(given, METHODS, "method in candidates")
    if named.codec is not default_codec:
        raise ConfigError(
            f"candidates has {given!r}, which has a codec of its own: leave it out"
        )
    return named.build(1.0, {})


def _codec_for(
    collective: Collective,
    chosen: Method,
    given: str | Codec | None,
    options: Mapping[str, Any],
) -> Codec | None:
    if given is None and collective.coded:
        return chosen.build_codec(options)
    for name in signature(chosen.codec).parameters:
        if given is not None and options.get(name) is not None:
            raise ConfigError(
                f"{name} is {options[name]!r} and codec is {given!r}: {name} is an "
                "option of this method's own codec, leave one of them out"
            )
    # Also for a dense collective: the pipeline explains why it takes none.
    return codec(given) if isinstance(given, str) else given


def _named(name: object, known: Mapping[str, T], what: str) -> T:
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"unknown {what} {name!r}{_hint(name, known)}")
    return known[name]


def _hint(name: object, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = get_close_matches(str(name), known, n=3, cutoff=0.5)
    meant = f": did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"{meant} There are: {', '.join(known)}"
