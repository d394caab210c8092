"""Progress on standard error: a line that changes, or lines where it is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console


@contextmanager
def telling(
    what: str, console: Console | None = None
) -> Iterator[Callable[[str], None]]:
    """A function to call with what is done now; nothing is said before it is called."""
    console = console or Console(stderr=True)
    started = monotonic()
    if console.is_terminal:
        with console.status("") as status:
            yield lambda now: status.update(f"{what}: {now}")
        return

    def tell(now: str) -> None:
        seconds = f"{monotonic() - started:.0f} s"
        console.print(f"{what}: {now} ({seconds})", highlight=False, markup=False)

    yield tell
