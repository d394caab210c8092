"""The picture of the demo."""

from xml.etree import ElementTree as ET

from tests.tools.demo.test_race import run
from thinwire.tools.demo.loop import Look, Run
from thinwire.tools.demo.picture import draw

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*runs):
    root = ET.fromstring(draw(runs, "Loss & time", "4 workers <slow>"))
    lines = list(root.iter(f"{SVG}polyline"))
    labels = [
        each for each in root.iter(f"{SVG}text") if "name" in each.get("class", "")
    ]
    return root, lines, labels


def heights(line):
    return [float(spot.split(",")[1]) for spot in line.get("points").split()]


def test_every_method_has_a_line_that_falls_and_a_label_of_its_own():
    root, lines, labels = drawn(
        run("dense", 4.7, 3.2, 3.0, 2.9),
        run("bf16", 4.7, 3.0, 2.5, 2.01),
        run("powersgd-2", 4.7, 3.1, 2.8, 2.6),
        run("spardl", 4.7, 3.0, 2.5, 2.0),
    )
    for line in lines:
        assert heights(line) == sorted(heights(line))
        # Where they start is left out: it would leave no room for the rest.
        assert len(heights(line)) == 3
    colours = {
        label.text: (line.get("class"), line.get("stroke-dasharray") == "none")
        for label, line in zip(labels, lines, strict=True)
    }
    assert colours == {
        "plain DDP 2.90": ("theirs", True),
        "spardl 2.00": ("ours", True),  # the best of ours
        "bf16 2.01": ("ours", False),
        "PowerSGD-2 2.60": ("theirs", False),
    }
    said = [each.text for each in root.iter(f"{SVG}text")]
    assert said[:2] == ["Loss & time", "4 workers <slow>"]


def test_plain_ddps_last_loss_is_a_line_across():
    root, lines, _ = drawn(run("dense", 4.7, 3.2, 2.9), run("spardl", 4.7, 3.0, 2.0))
    (level,) = [
        each for each in root.iter(f"{SVG}line") if each.get("class") == "level"
    ]
    assert level.get("y1") == level.get("y2")
    assert float(level.get("y1")) == heights(lines[0])[-1]


def test_one_method_that_learns_nothing_is_a_picture_too():
    _, lines, labels = drawn(run("topk", 4.7, 4.7))
    assert len(lines) == len(labels) == 1
    _, lines, labels = drawn(Run("topk", (Look(0, 0.0, 4.7),), 0.0, 1000))
    assert len(lines) == len(labels) == 1
