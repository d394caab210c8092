"""Where the figures of a command go: tables, JSON, a page of charts."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from thinwire.errors import ConfigError
from thinwire.tools.cli.command import STANDARD_OUTPUT
from thinwire.tools.report import files


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that were asked for; JSON on standard output replaces the tables."""

    figures: Path | None = None
    page: Path | None = None

    @property
    def printed(self) -> bool:
        """Whether JSON is printed."""
        return str(self.figures) == STANDARD_OUTPUT

    @property
    def console(self) -> Console:
        """Where tables go."""
        return Console(quiet=self.printed)

    def check(self) -> None:
        """Refuse what could not be written, before anything is measured."""
        for path in (self.figures, self.page):
            if path is not None and str(path) != STANDARD_OUTPUT:
                files.check_writable(path)
        if self.page is not None and self.page.suffix not in {".html", ".htm"}:
            raise ConfigError(
                f"report is {self.page}: it is a page of HTML; give a file that ends "
                "in .html"
            )

    def write(
        self,
        figures: Mapping[str, Any] | Sequence[Any],
        page: Callable[[], str] | None = None,
    ) -> None:
        """Write them; the page is made where one is wanted."""
        text = json.dumps(figures, indent=1) + "\n"
        if self.printed:
            sys.stdout.write(text)
        elif self.figures is not None:
            self.figures.write_text(text)
            self._say(f"Figures written to {self.figures}")
        if self.page is not None and page is not None:
            self.page.write_text(page(), encoding="utf-8")
            self._say(f"Report written to {self.page}")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
