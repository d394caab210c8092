"""A report shows its figures and loads nothing."""

import json
import re
from html import escape
from html.parser import HTMLParser

import pytest

from tests.tools.bench.figures import LABELS, reduction, row, training
from tests.tools.report.figures import curves, plan, result
from thinwire.errors import ConfigError
from thinwire.hooks.metrics import PHASES
from thinwire.tools.report import files
from thinwire.tools.report.bars import Bar, Row, bars
from thinwire.tools.report.document import draw
from thinwire.tools.report.judgement import Judgement
from thinwire.tools.report.reductions import GROUPS


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.given: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.given += attrs

    def handle_data(self, data):
        self.text.append(data)


def test_every_method_of_every_setting_is_in_it():
    found = Page(draw([reduction(), reduction(8), training()]))
    for label in LABELS[2:]:
        # bars of time, phases, and the table, for either reduction
        assert found.text.count(label) >= 6, label
    assert found.text.count("PowerSGD rank 1") >= 4
    assert "765" in found.text
    assert "689 - 918" in found.text
    assert "674" in found.text  # nominal: 1.1e8 x 0.7654 bytes at 1 Gbit/s
    assert any("14,700,000 elements" in text for text in found.text)
    assert any("resnet20: 269,722 parameters" in text for text in found.text)


EVERY = [reduction(4), reduction(8), training(), plan(), curves(), result()]


def test_it_asks_for_nothing_from_elsewhere_and_runs_nothing():
    text = draw(EVERY)
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not {"src", "href", "onload"} & {name for name, _ in found.given}
    assert "url(" not in text
    assert "@import" not in text
    assert escape("spardl <script>&amp;") in text
    assert escape("a <name> of many letters") in text


def test_charts_say_what_they_show():
    found = Page(draw(EVERY))
    assert found.tags.count("svg") == found.given.count(("role", "img")) > 0
    assert all(value for name, value in found.given if name == "aria-label")


def test_what_is_remembered_does_not_look_like_an_error():
    assert "error" not in "".join(Page(draw(EVERY)).text)


def test_scaling_is_drawn_where_several_numbers_of_ranks_were_measured():
    assert "Scaling" not in draw([reduction(4)])
    assert "Scaling" not in draw([reduction(4), reduction(8, density=0.001)])
    assert draw([reduction(4), reduction(8)]).count("Scaling") == 1


def judged(*rows):
    return Judgement.of(rows)


def test_the_fastest_is_used_where_quartiles_are_apart():
    found = judged(row("torch", 1.0), row("spardl", 0.1), row("topk", 0.5))
    assert found.headline == "Use spardl"
    assert found.times == 10
    assert list(found.same) == []
    said = Page(found.drawn("a reduction")).text
    assert {"100 ms", "10 times", "11 MB"} <= set(said)


def test_a_list_of_names_is_read_as_one():
    names = ("torch-bf16", "torch-fp16", "powersgd-1")
    said = judged(row("torch", 1.0), *(row(name, 1.1) for name in names)).drawn("")
    assert "DDP + bf16 hook, DDP + fp16 hook, PowerSGD rank 1:" in said


def test_dense_can_win():
    found = judged(row("torch", 0.1), row("spardl", 0.2))
    assert found.headline == "Stay with plain DDP"
    assert 'class="verdict"' in found.drawn("a step")


def test_overlapping_quartiles_are_no_difference():
    """1.19 times as fast, and no verdict: their quartiles overlap."""
    found = judged(row("torch", 1.0), row("topk", 0.84))
    assert found.headline == "No difference: stay with plain DDP"
    assert "topk: quartiles overlap" in found.drawn("a step")


def test_of_equals_the_one_that_sends_least_is_used():
    rows = row("torch", 1.0), row("topk", 0.10), row("spardl", 0.11, wire=1000)
    found = judged(*rows)
    assert found.headline == "Use spardl"
    assert "quartiles tell: topk" in found.drawn("a step")


def test_what_does_not_exchange_is_no_method():
    alone = row("no exchange", 0.01, sent=None, wire=None)
    assert judged(row("torch", 1.0), alone).headline == "Stay with plain DDP"


def test_latency_is_said_to_be_shaped_where_it_is():
    assert "Latency is not shaped" in draw([reduction()])
    text = draw([reduction(delay=0.02)])
    assert "Latency is not shaped" not in text
    assert "Every message is 20 ms late" in text
    assert "links of 1 Gbit/s, 20 ms late, in a lab" in text


def test_what_is_not_shaped_or_a_forecast_is_said_to_be():
    rows = [row("torch", 0.1, wire=None, forecast=0.4), row("topk", 0.1)]
    text = draw([reduction(place="loopback", rows=rows)])
    assert "link is not shaped" in text
    assert "forecast ms at 1 Gbit/s" in text
    assert "link is not shaped" not in draw([reduction()])


def test_phases_are_in_five_groups_and_none_is_lost():
    phases = {name: 0.01 for names in GROUPS.values() for name in names}
    phases |= {"a new one": 0.02}
    figures = reduction(rows=[row("torch", 1.0), row("topk", 0.2, phases=phases)])
    text = draw([figures])
    assert len(GROUPS) == 5
    for name in GROUPS:
        assert name in text
    assert f"{1000 * sum(phases.values()):g} ms" in Page(text).text


def test_every_phase_of_the_hooks_has_a_group():
    known = {name for names in GROUPS.values() for name in names}
    assert set(PHASES) <= known


def widths(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"width:([\d.]+)%", text)]


def test_bars_are_as_long_as_their_numbers():
    rows = [
        Row("a", [Bar([1.0], "1")], ours=True, exact=""),
        Row("b", [Bar([1.0, 2.0], "3", None, (0, 1))], ours=False, exact="exactly"),
    ]
    drawn = bars(rows, ["ms"], "two")
    assert widths(drawn) == pytest.approx([100 / 3, 100 / 3, 200 / 3], abs=0.01)
    assert "exactly" in drawn
    beside = [Row("c", [Bar([6.0], "6")], ours=True, exact="")]
    halved = bars(rows, ["ms"], "two", beside=beside)
    assert widths(halved) == pytest.approx([100 / 6, 100 / 6, 100 / 3], abs=0.01)


def test_a_plan_says_what_to_do_and_what_low_densities_cost():
    text = draw([plan()])
    found = Page(text)
    assert "Use spardl at 1 %" in found.text
    assert {"200 ms", "5 times", "20 MB"} <= set(found.text)
    assert any("no latency" in each for each in found.text)
    assert found.text.index("At densities below 1 %") > found.text.index("plain DDP")
    assert "3.26" in found.text
    kept = draw([plan(dense_is_best=True, recommended="dense")])
    assert "Stay with plain DDP" in kept


def test_results_of_training_are_curves_of_one_task():
    other = result(task="gpt-bytes", metric_name="bits per byte")
    dense = result("dense", seed=1)
    found = Page(draw([result(), dense, other]))
    assert found.tags.count("svg") == 2 * 2 * 2  # two charts a task, for two widths
    assert found.text.count("spardl 1 %") >= 5
    assert "dense, seed 1" in found.text
    kept = result()
    del kept["history"]["seconds"]
    assert draw([kept]).count("<svg") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.clear(), "no figures"),
        (lambda f: f.update({files.KIND: "codecs"}), "no figures"),
        (lambda f: f.update(version=9), "version 9"),
        (lambda f: f.update(rows=[]), "no rows"),
        (lambda f: f.update(rows=7), "no rows"),
        (lambda f: f["rows"].append("x"), "no label, method"),
        (lambda f: f["rows"][0].pop("cpu"), "no cpu"),
        (lambda f: f.pop("floor"), "no floor"),
        (lambda f: f.update({files.KIND: "plan"}), "no forecasts"),
        (lambda f: f.update({files.KIND: []}), "no figures"),
        (lambda f: f["rows"].pop(0), "no row 'torch'"),
        (lambda f: f.update(plan(recommended="auto")), "no row 'auto'"),
    ],
)
def test_files_of_anything_else_are_refused(tmp_path, change, said):
    figures, path = reduction(), tmp_path / "figures.json"
    change(figures)
    path.write_text(json.dumps(figures))
    with pytest.raises(ConfigError, match=said) as caught:
        files.read(path)
    assert str(path) in str(caught.value)


def test_figures_come_back_as_written(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(reduction()))
    assert files.read(path) == [reduction()]
    lines = path.with_suffix(".jsonl")
    lines.write_text(f"{json.dumps(plan())}\n{json.dumps(result())}\n")
    assert files.read(lines) == [plan(), result()]
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        files.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not JSON"):
        files.read(path)
    path.write_text('{"history": 1, "reduction": 2}')
    with pytest.raises(ConfigError, match="no task"):
        files.read(path)
    lines.write_text("")
    with pytest.raises(ConfigError, match="empty"):
        files.read(lines)
    with pytest.raises(ConfigError, match="no such file"):
        files.read(tmp_path / "none")
