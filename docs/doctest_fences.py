"""Show the examples of docstrings as code: what follows `>>>` up to an empty line."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^|(?<=\n))(?:>>> .*)(?:\n(?!\s*\n).+)*")


class DoctestFences(griffe.Extension):
    """Put fences around examples before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one module, class, function or attribute."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value
            )
