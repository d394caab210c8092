"""Curves: what is drawn lies where its numbers say, and names do not touch."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from thinwire.tools.report.curves import Series, apart, curves

SPACE = "{http://www.w3.org/2000/svg}"
AXES = ("seconds", "loss")


def drawn(*series, **options):
    return ElementTree.fromstring(curves(series, AXES, "about", **options))


def spots(line):
    return [tuple(map(float, each.split(","))) for each in line.get("points").split()]


def test_points_lie_where_their_numbers_say():
    line = Series("a", [(0.0, 1.0), (5.0, 3.0), (10.0, 2.0)], ours=True)
    (found,) = drawn(line).iter(f"{SPACE}polyline")
    (x0, y0), (x1, y1), (x2, y2) = spots(found)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(2 * (y0 - y2), abs=0.3)
    assert y1 < y2 < y0  # higher numbers are further up
    assert found.get("class") == "ours"


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors():
    line = Series("a", [(2, 1.0), (4, 10.0), (8, 100.0)])
    picture = drawn(line, log=(True, True))
    (found,) = picture.iter(f"{SPACE}polyline")
    xs, ys = zip(*spots(found), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert {"2", "4", "8"} <= {each.text for each in picture.iter(f"{SPACE}text")}


def test_names_stand_beside_their_lines_and_apart():
    every = [Series(f"name {n}", [(0, 1.0), (1, 1.0 + 1e-3 * n)]) for n in range(6)]
    names = [
        each
        for each in drawn(*every).iter(f"{SPACE}text")
        if "name" in (each.get("class") or "")
    ]
    tops = sorted(float(each.get("y")) for each in names)
    assert [each.text for each in names] == [each.name for each in every]
    assert all(second - first >= 16 for first, second in pairwise(tops))


def test_a_heading_and_a_level_are_drawn_apart_from_the_lines():
    line = Series("a", [(1.0, 1.0), (3.0, 5.0)])
    picture = drawn(line, heading=("A <title>", "and more"), level=3.0)
    said = {each.text: each for each in picture.iter(f"{SPACE}text")}
    (found,) = picture.iter(f"{SPACE}polyline")
    (_, low), (_, high) = spots(found)
    assert float(said["A <title>"].get("y")) < float(said["and more"].get("y")) < high
    (level,) = [x for x in picture.iter(f"{SPACE}line") if x.get("class") == "level"]
    assert float(level.get("y1")) == pytest.approx((low + high) / 2, abs=0.2)
    # One that no line reaches is in the picture too.
    (far,) = drawn(line, level=0.0).iter(f"{SPACE}polyline")
    assert spots(far)[0][1] < spots(next(drawn(line).iter(f"{SPACE}polyline")))[0][1]


def test_exact_numbers_are_there_for_a_pointer_even_of_long_lines():
    line = Series("long", [(float(n), 1 / (n + 1)) for n in range(5000)])
    text = curves([line], AXES, "about")
    said = re.findall(r"<title>long: ([^<]*)</title>", text)
    assert said[0] == "0, 1"
    assert said[-1] == "4999, 0.0002"
    assert len(said) < 100


def test_it_needs_nothing_and_takes_any_name():
    picture = curves([Series("<b>&", [(0, 0.0)])], AXES, "<about>")
    assert "&lt;b&gt;&amp;" in picture
    assert "url(" not in picture
    assert "<script" not in picture
    ElementTree.fromstring(picture)


@pytest.mark.parametrize(
    "series",
    [
        [],
        [Series("none", [])],
        [Series("flat", [(1.0, 2.0), (2.0, 2.0)])],
        [Series("zero", [(0.0, 0.0)])],
    ],
    ids=["nothing", "no points", "flat", "zero"],
)
@pytest.mark.parametrize("log", [(False, False), (True, True)])
def test_little_to_draw_is_drawn(series, log):
    drawn(*series, log=log)


def test_a_long_name_leaves_room_for_its_line():
    long = "spardl:teams=2:variant=recursive elias-fano+bfloat16"
    picture = drawn(Series(long, [(0, 1.0), (1, 2.0)]), size=(340, 300))
    (name,) = [t for t in picture.iter(f"{SPACE}text") if "name" in t.get("class", "")]
    assert name.text.endswith("…")
    assert name.find(f"{SPACE}title").text == long
    (line,) = picture.iter(f"{SPACE}polyline")
    assert spots(line)[-1][0] - spots(line)[0][0] > 100


def test_apart_keeps_order_and_bounds():
    moved = apart([5.0, 5.0, 6.0, 90.0, 99.0], 10.0, (0.0, 100.0))
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(moved))
    assert moved[0] >= 0
    assert moved[-1] <= 100
