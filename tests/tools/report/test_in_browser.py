"""Reports in a real browser: on a phone and on a desk, light and dark."""

import json

import pytest

from tests.tools.bench.figures import LABELS, LONG, reduction, row, training
from tests.tools.report import browser
from tests.tools.report.figures import curves, plan, result
from thinwire.tools.report.document import draw

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no playwright: run `make test-report`"
)
pytestmark = pytest.mark.browser

WIDTHS = (360, 1280)
SCHEMES = ("light", "dark")
LEAST_CONTRAST = 4.5  # of text, as WCAG asks
LEAST_MARK_CONTRAST = 3.0  # of bars and lines
LEAST_LETTERS = 11  # pixels

# Of every piece of text: its colour, what is behind it, its size, whether it is drawn.
TEXTS = """() => {
  const opaque = colour => !/, 0\\)$|transparent/.test(colour);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!(at instanceof SVGElement) && opaque(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || parent.localName === 'title') continue;
    const style = getComputedStyle(parent);
    const drawn = parent instanceof SVGElement;
    const scale = drawn ? parent.ownerSVGElement.getScreenCTM().a : 1;
    if (getComputedStyle(parent).display === 'none' || !parent.getClientRects().length)
      continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const box = drawn ? parent.getBoundingClientRect() : range.getBoundingClientRect();
    found.push({
      text, colour: drawn ? style.fill : style.color, behind: behind(parent),
      letters: parseFloat(style.fontSize) * scale,
      box: [box.left, box.top, box.right, box.bottom],
      chart: [...document.querySelectorAll('svg, .bars')].filter(
        chart => chart.getClientRects().length).indexOf(
          drawn ? parent.ownerSVGElement : parent.closest('.bars')),
    });
  }
  return found;
}"""

# Of every chart that is shown: where it is, its card, and its marks.
CHARTS = """() => [...document.querySelectorAll('svg, .bars')].filter(
    chart => chart.getClientRects().length).map(chart => {
  const box = chart.getBoundingClientRect(), card = chart.closest('figure');
  const style = getComputedStyle(card), frame = card.getBoundingClientRect();
  const room = frame.width - parseFloat(style.paddingLeft)
    - parseFloat(style.paddingRight);
  const marks = [...chart.querySelectorAll('.bar i, circle.dot, polyline')];
  return {
    box: [box.left, box.top, box.right, box.bottom], behind: style.backgroundColor,
    room, name: chart.getAttribute('aria-label'), drawn: chart.localName === 'svg',
    marks: marks.map(mark => {
      const style = getComputedStyle(mark), size = mark.getBoundingClientRect();
      const colours = {polyline: style.stroke, circle: style.fill};
      return {colour: colours[mark.localName] || style.backgroundColor,
              width: size.width, height: size.height};
    }),
  };
})"""


@pytest.fixture(scope="module")
def chromium():
    if browser.find() is None:
        pytest.skip("no browser: run `make test-report`")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(**browser.options())
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with everything that a report can have."""
    rows = [row("torch", 0.1, wire=None, forecast=0.4), row("topk", 2e-4, wire=None)]
    every = [plan(), reduction(4), reduction(8), training(), curves()]
    every += [result(), result("dense")]
    every.append(reduction(place="loopback", rows=rows))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(draw(json.loads(json.dumps(every))))
    return path.as_uri()


@pytest.fixture(
    scope="module", params=[(s, w) for s in SCHEMES for w in WIDTHS], ids=str
)
def opened(request, chromium, address):
    scheme, width = request.param
    tab = chromium.new_page(
        color_scheme=scheme, viewport={"width": width, "height": 780}
    )
    tab.trouble = []
    tab.on("console", lambda message: tab.trouble.append(message.text))
    tab.on("pageerror", lambda error: tab.trouble.append(str(error)))
    tab.on("request", lambda request: tab.trouble.append(request.url))
    tab.goto(address)
    tab.trouble.remove(address)
    yield tab
    tab.close()


def test_nothing_is_wrong_or_asked_for(opened):
    assert opened.trouble == []
    assert opened.title() == "thinwire"


def test_nothing_sticks_out_to_the_side(opened):
    width = opened.viewport_size["width"]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate("document.body.scrollWidth") <= width


def test_charts_are_there_fill_their_cards_and_have_marks_one_can_see(opened):
    charts = opened.evaluate(CHARTS)
    # Of a plan 3, of reductions 2 each and their scaling, a step, curves, results 2.
    assert len(charts) == 3 + 3 * 2 + 1 + 1 + 1 + 2
    for chart in charts:
        left, top, right, bottom = chart["box"]
        assert right - left == pytest.approx(chart["room"], abs=1.5), chart["name"]
        assert bottom - top > 25
        assert chart["name"]
        seen = [m for m in chart["marks"] if m["width"] > 1 and m["height"] > 1]
        assert seen, chart["name"]
        for mark in seen:
            contrast = ratio(mark["colour"], chart["behind"])
            assert contrast >= LEAST_MARK_CONTRAST, (chart["name"], mark)


def test_ours_have_one_colour_and_what_is_compared_another(opened):
    found = opened.evaluate("""() => ['ours', 'theirs'].map(side =>
      [...new Set([...document.querySelectorAll(
        `.row.${side} .fill, circle.dot.${side}`)].map(mark => {
          const style = getComputedStyle(mark);
          return mark.localName === 'circle' ? style.fill : style.backgroundColor;
        }))])""")
    assert [len(colours) for colours in found] == [1, 1]
    assert found[0] != found[1]


def test_a_verdict_comes_before_all_charts(opened):
    tops = opened.evaluate("""() => ['.verdict', 'figure'].map(each =>
      document.querySelector(each).getBoundingClientRect().top)""")
    assert tops[0] < tops[1] < opened.viewport_size["height"]


def test_exact_numbers_appear_under_a_pointer(opened):
    row = opened.locator(".row", has_text="PowerSGD").first
    tip = row.locator(".tip")
    assert not tip.is_visible()
    row.hover()
    assert tip.is_visible()
    assert "250.000 ms, quartiles 225.000 and 300.000" in tip.inner_text()
    box, width = tip.bounding_box(), opened.viewport_size["width"]
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    opened.mouse.move(0, 0)


def test_all_text_can_be_read(opened):
    texts = opened.evaluate(TEXTS)
    said = {each["text"] for each in texts}
    assert {*LABELS[2:], LONG, "plain DDP", "PowerSGD rank 1"} <= said
    for each in texts:
        assert ratio(each["colour"], each["behind"]) >= LEAST_CONTRAST, each
        assert each["letters"] >= LEAST_LETTERS, each


def test_words_in_charts_neither_touch_nor_leave_them(opened):
    charts = opened.evaluate(CHARTS)
    texts = [each for each in opened.evaluate(TEXTS) if each["chart"] >= 0]
    for number, chart in enumerate(charts):
        inside = [each for each in texts if each["chart"] == number]
        assert inside
        for each in inside:
            assert within(each["box"], chart["box"]), (chart["name"], each)
        for place, one in enumerate(inside):
            for other in inside[place + 1 :]:
                assert apart(one["box"], other["box"]), (chart["name"], one, other)


def test_the_schemes_differ(chromium, address):
    colours = set()
    for scheme in SCHEMES:
        tab = chromium.new_page(color_scheme=scheme)
        tab.goto(address)
        colours.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        tab.close()
    assert len(colours) == 2


def within(box, frame, slack=1.0):
    left, top, right, bottom = box
    return (
        left >= frame[0] - slack
        and top >= frame[1] - slack
        and right <= frame[2] + slack
        and bottom <= frame[3] + slack
    )


def apart(one, other, slack=2.0):
    """Whether two boxes overlap by no more than the room around letters."""
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return across <= slack or down <= 3 * slack


def ratio(one, other):
    """Contrast of two colours, as WCAG defines it."""
    lights = sorted((light(one), light(other)), reverse=True)
    return (lights[0] + 0.05) / (lights[1] + 0.05)


def light(colour):
    numbers = [float(n) for n in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (number / 255 for number in numbers)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
