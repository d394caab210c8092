"""The picture of the demo."""

from itertools import pairwise
from xml.etree import ElementTree as ET

from tests.tools.demo.test_race import run
from thinwire.tools.demo import chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*runs):
    text = chart.draw(runs, "Loss & time", "4 workers <slow>")
    root = ET.fromstring(text)
    lines = [each.get("d") for each in root.iter(f"{SVG}path")]
    labels = [each for each in root.iter(f"{SVG}text") if float(each.get("x")) > 620]
    return text, lines, labels


def test_every_method_has_a_line_that_falls_and_a_label_of_its_own():
    runs = (
        run("dense", 4.7, 3.2, 3.0, 2.9),
        run("powersgd-2", 4.7, 3.1, 2.8, 2.6),
        run("spardl", 4.7, 3.0, 2.5, 2.0),
        run("bf16", 4.7, 3.0, 2.5, 2.01),
    )
    text, lines, labels = drawn(*runs)
    assert len(lines) == 4
    for line in lines:
        heights = [float(point.split()[1]) for point in line.strip("M").split("L")]
        assert heights == sorted(heights)
    assert {label.text for label in labels} == {
        "plain DDP 2.90",
        "PowerSGD-2 2.60",
        "spardl 2.00",
        "bf16 2.01",
    }
    heights = sorted(float(label.get("y")) for label in labels)
    assert all(b - a >= 17 for a, b in pairwise(heights))
    assert 'class="goal"' in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_one_method_that_learns_nothing_is_a_picture_too():
    _, lines, labels = drawn(run("topk", 4.7, 4.7))
    assert len(lines) == len(labels) == 1
