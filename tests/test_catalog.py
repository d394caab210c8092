"""Names to objects: every name builds; a wrong name gets a suggestion."""

from dataclasses import fields

import pytest

from thinwire import catalog
from thinwire.choosers import Auto, AutoWarmup, BySize, Warmup
from thinwire.codecs import (
    QSGD,
    BFloat16,
    Bloom,
    EliasFano,
    FitPoly,
    Int8,
    MinSize,
    Rice,
    Split,
)
from thinwire.collectives import BF16, AllGather, Dense, GTopK
from thinwire.errors import ConfigError
from thinwire.feedback import Forget, Residual
from thinwire.layout import Layout
from thinwire.reducers import Pipeline

DEFAULT = Split(EliasFano(), BFloat16())
RICE_INT8 = Split(Rice(), Int8())


@pytest.mark.parametrize("name", catalog.METHODS)
@pytest.mark.parametrize("feedback", catalog.FEEDBACKS)
def test_every_method_builds(name, feedback):
    reducer = catalog.reducer(name, density=0.5, feedback=feedback)
    collective = catalog.METHODS[name].collective
    assert isinstance(reducer.collective, collective)
    assert reducer.feedback == catalog.FEEDBACKS[feedback]
    assert reducer.collective.density in (0.5, None)
    assert reducer.init(Layout.flat(3)).memory.x.whole().numel() == 3
    assert catalog.METHODS[name].summary


@pytest.mark.parametrize("index", catalog.INDEX_CODECS)
@pytest.mark.parametrize("value", catalog.VALUE_CODECS)
def test_every_pair_of_codecs_has_a_name(index, value):
    codec = catalog.codec(f"{index}+{value}")
    known = catalog.INDEX_CODECS[index], catalog.VALUE_CODECS[value]
    assert codec == Split(*known)
    assert catalog.codec_name(codec) == f"{index}+{value}"


def test_tags_tell_codecs_apart():
    for known in (catalog.INDEX_CODECS, catalog.VALUE_CODECS):
        assert len({codec.tag for codec in known.values()}) == len(known)


@pytest.mark.parametrize("name", catalog.METHODS)
def test_codecs_are_for_methods_that_send_lists(name):
    if catalog.reducer(name).collective.coded:
        assert catalog.reducer(name, codec="rice+int8").codec == RICE_INT8
        assert catalog.reducer(name, codec=RICE_INT8).codec is RICE_INT8
    else:
        with pytest.raises(ConfigError, match="leave the codec out"):
            catalog.reducer(name, codec="rice+int8")


def test_deepreduce_by_its_published_combinations():
    assert catalog.reducer("deepreduce").codec == MinSize(
        1001, Split(Bloom("p2"), QSGD())
    )
    chosen = {"index": "bloom-p0", "value": "fit-poly", "fpr": 0.01}
    assert catalog.reducer("deepreduce", **chosen).codec == MinSize(
        1001, Split(Bloom("p0", 0.01), FitPoly())
    )
    assert catalog.codec_name(catalog.deepreduce()) == "bloom-p2+qsgd"
    with pytest.raises(ConfigError, match="'rice' is not a Bloom filter"):
        catalog.reducer("deepreduce", index="rice", fpr=0.1)
    with pytest.raises(ConfigError, match=r"unknown value codec 'qsdg'.*'qsgd'"):
        catalog.reducer("deepreduce", value="qsdg")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (catalog.reducer("dense"), Pipeline(Dense())),
        (catalog.reducer("bf16"), Pipeline(BF16())),
        (catalog.reducer("topk"), Pipeline(AllGather(0.01), DEFAULT)),
        (
            catalog.reducer("topk", feedback="none", seed=3, on_nonfinite="zero"),
            Pipeline(AllGather(0.01), DEFAULT, Forget(), "zero", 3),
        ),
        (
            catalog.reducer("topk", codec=Split(), feedback=Residual()),
            Pipeline(AllGather(0.01), Split(), Residual()),
        ),
        (
            catalog.reducer("topk", warmup=7),
            Pipeline(Warmup(AllGather(0.01), 7, 0), DEFAULT),
        ),
        (
            catalog.reducer("topk", warmup=(7, 9)),
            Pipeline(Warmup(AllGather(0.01), 7, 9), DEFAULT),
        ),
        (
            catalog.reducer("topk", warmup=(0, 9)),
            Pipeline(Warmup(AllGather(0.01), 0, 9), DEFAULT),
        ),
        (
            catalog.reducer("topk", min_size=50, warmup="auto"),
            Pipeline(AutoWarmup(BySize(50, AllGather(0.01))), DEFAULT),
        ),
        (catalog.reducer("topk", warmup=(0, 0)), catalog.reducer("topk")),
        (
            catalog.reducer("topk", min_size=50),
            Pipeline(BySize(50, AllGather(0.01)), DEFAULT),
        ),
        (
            catalog.reducer("topk", min_size=50, warmup=7),
            Pipeline(Warmup(BySize(50, AllGather(0.01)), 7), DEFAULT),
        ),
        (catalog.reducer("bf16", min_size=50), Pipeline(BySize(50, BF16()))),
    ],
    ids=lambda made: str(made.collective),
)
def test_options_become_stages(made, expected):
    assert made == expected


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("topkk", {}, "unknown method 'topkk': did you mean 'topk'.*There are: dense"),
        ("bf-16", {}, "did you mean 'bf16'"),
        ("zzz", {}, r"unknown method 'zzz'\. There are: dense, bf16, topk"),
        ("topk", {"densty": 1}, "option 'densty' of 'topk': did you mean 'density'"),
        ("topk", {"warm_up": 5}, "did you mean 'warmup'"),
        ("bf16", {"teams": 5}, "unknown option 'teams' of 'bf16'"),
        ("topk", {"codec": "rwa"}, "unknown codec 'rwa': write an index codec"),
        ("topk", {"feedback": "residuals"}, "feedback 'residuals'.*'residual'"),
        ("topk", {"on_nonfinite": "nope"}, "on_nonfinite is 'nope'"),
        ("topk", {"density": 0}, "density is 0"),
        ("topk", {"density": 1.5, "warmup": 3}, "density is 1.5"),
        ("topk", {"warmup": -1}, "0 or more"),
        ("topk", {"warmup": (1, -1)}, "0 or more"),
        ("topk", {"min_size": -1}, "min_size is -1"),
        ("dense", {"warmup": (0, 5)}, "no density to ramp"),
        ("dense", {"warmup": "auto"}, "no density to warm up: leave warmup='auto' out"),
        ("bf16", {"warmup": "auto", "min_size": 9}, "no density to warm up"),
        ("topk", {"warmup": "slow"}, "warmup is 'slow'.*or 'auto'"),
        ("dense", {"codec": "raw"}, "leave the codec out"),
    ],
)
def test_what_cannot_be_built_is_explained(name, options, said):
    with pytest.raises(ConfigError, match=said):
        catalog.reducer(name, **options)


@pytest.mark.parametrize("name", catalog.METHODS)
def test_options_can_be_given_what_they_are_anyway(name):
    usual = catalog.reducer(name)
    known = vars_of(usual.collective)
    given = {n: known[n] for n in catalog.method(name).options if n in known}
    assert catalog.reducer(name, **given).collective == usual.collective


def vars_of(collective):
    return {field.name: getattr(collective, field.name) for field in fields(collective)}


def test_candidates_are_counted_by_gs_sgd_and_named_by_auto():
    assert catalog.reducer("gs-sgd", candidates=3).collective.candidates == 3


def test_candidates_of_auto_by_name():
    made = catalog.reducer("auto", density=0.1, candidates=("bf16", "gtopk"))
    assert made == Pipeline(Auto(0.1, (BF16(), GTopK())), DEFAULT)
    assert catalog.reducer("auto", candidates=[BF16()]).codec is None
    assert catalog.reducer("auto", candidates="bf16").codec is None
    for wrong, said in (("gtpk", "'gtopk'"), ("deepreduce", "codec of its own")):
        with pytest.raises(ConfigError, match=said):
            catalog.reducer("auto", candidates=(wrong,))
    with pytest.raises(ConfigError, match="candidates has 5"):
        catalog.reducer("auto", candidates=5)
    with pytest.raises(ConfigError, match="cannot try itself"):
        catalog.reducer("auto", candidates=("auto",))


def test_a_method_lists_its_own_options():
    assert catalog.method("topk").options == ()
    assert catalog.method("auto").options == (
        "candidates",
        "rounds",
        "visit",
        "recheck",
    )
    assert catalog.method("topk").build(0.5, {}) == AllGather(0.5)
    assert catalog.method("dense").build(0.5, {}) == Dense()


@pytest.mark.parametrize("known", [catalog.INDEX_CODECS, catalog.VALUE_CODECS])
def test_no_two_codecs_share_a_tag(known):
    tags = {codec.tag: type(codec) for codec in known.values()}
    assert all(tags[codec.tag] is type(codec) for codec in known.values())
