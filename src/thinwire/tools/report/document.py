"""One page of any figures: HTML that needs nothing else, for a phone, light or dark."""

from collections.abc import Sequence

from thinwire.tools.report import learning, page, plans, reductions, steps
from thinwire.tools.report.files import kind
from thinwire.tools.report.words import Figures

_TITLES = {"plan": "thinwire plan", "results": "thinwire: training"}


def draw(every: Sequence[Figures]) -> str:
    """The whole page of one or more sets of figures."""
    found: dict[str, list[Figures]] = {}
    for each in every:
        found.setdefault(kind(each), []).append(each)
    body = [
        *map(plans.section, found.get("plan", [])),
        *reductions.sections(found.get("reduce", [])),
        *map(steps.section, found.get("train", [])),
        *map(learning.section, found.get("curves", [])),
        *learning.sections(found.get("results", [])),
    ]
    titles = dict.fromkeys(_TITLES.get(name, "thinwire bench") for name in found)
    title = "thinwire" if len(titles) > 1 else next(iter(titles))
    machines = dict.fromkeys(
        str(each["machine"]) for each in every if "machine" in each
    )
    return page.document(title, "".join(body), list(machines))
