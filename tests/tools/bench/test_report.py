"""A report shows its figures and loads nothing."""

import json
from html import escape
from html.parser import HTMLParser

import pytest

from tests.tools.bench.figures import LABELS, reduction, row, training
from thinwire.errors import ConfigError
from thinwire.tools.bench import charts, files
from thinwire.tools.bench.report import page, verdict


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
    found = Page(page([reduction(), reduction(8), training()]))
    for label in LABELS:
        # bars of time, phases and error, and the table, for either reduction
        assert found.text.count(label) >= 8, label
    assert "765" in found.text
    assert "65.3 - 78.5" not in found.text
    assert "689 - 918" in found.text
    assert "674" in found.text  # nominal: 1.1e8 x 0.7654 bytes at 1 Gbit/s
    assert any("14,700,000 elements" in text for text in found.text)
    assert any("resnet20: 269,722 parameters" in text for text in found.text)


def test_it_asks_for_nothing_from_elsewhere_and_runs_nothing():
    text = page([reduction(), training()])
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not {"src", "href", "onload"} & {name for name, _ in found.given}
    assert "url(" not in text
    assert "@import" not in text
    assert escape("spardl <script>&amp;") in text


def test_charts_say_what_they_show():
    found = Page(page([reduction()]))
    assert found.tags.count("svg") == found.given.count(("role", "img")) == 4
    assert all(value for name, value in found.given if name == "aria-label")


def test_scaling_is_drawn_where_several_numbers_of_ranks_were_measured():
    assert "Scaling" not in page([reduction(4)])
    assert "Scaling" not in page([reduction(4), reduction(8, density=0.001)])
    assert page([reduction(4), reduction(8)]).count("Scaling") == 1


def test_dense_can_win():
    figures = reduction(rows=[row("torch", 0.1), row("spardl", 0.2)])
    assert verdict(figures) == "Dense is best here: 100 ms."
    assert "15 times faster than dense (765 ms)" in verdict(reduction())


def test_what_is_not_shaped_or_a_forecast_is_said_to_be():
    rows = [row("torch", 0.1, wire=None, forecast=0.4)]
    text = page([reduction(place="loopback", rows=rows)])
    assert "link is not shaped" in text
    assert "forecast ms at 1 Gbit/s" in text
    assert "link is not shaped" not in page([reduction()])


def test_bars_are_as_long_as_their_numbers():
    drawn = charts.bars(
        [charts.Bar("a", [1.0], "1"), charts.Bar("b", [1.0, 2.0], "3", None, [0, 1])],
        "two",
    )
    assert drawn.count("<rect") == 3
    unit = (charts.WIDTH - 2) / 3
    assert drawn.count(f'width="{unit:.2f}"') == 2
    assert f'width="{2 * unit:.2f}"' in drawn


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
    assert files.read(path) == reduction()
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        files.read(path)
    with pytest.raises(ConfigError, match="no such file"):
        files.read(tmp_path / "none")
