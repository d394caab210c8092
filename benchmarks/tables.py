"""Tables of Markdown, on standard output."""

from collections.abc import Sequence

from thinwire.tools.bench.codecs import Times


def times(found: Times) -> str:
    return f"{found.median:.3g} ({found.least:.3g} to {found.most:.3g})"


def numbers(found: Sequence[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in found)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def title(text: str) -> None:
    print(f"\n### {text}\n")


def head(*names: str) -> None:
    row(*names)
    print(f"|{' --- |' * len(names)}")


def row(*texts: str) -> None:
    print(f"| {' | '.join(texts)} |", flush=True)
