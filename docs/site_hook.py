"""What `make docs` adds to MkDocs: pages that lie at the top of the repository.

ARCHITECTURE.md, CONTRIBUTING.md and CHANGELOG.md become pages of the site. Links are
rewritten, so that the same link works in the repository and on the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "ARCHITECTURE.md": "design/architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages, generated from the files."""
    for source, page in PAGES.items():
        text = relinked((ROOT / source).read_text(), source, page)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links from other pages to those files lead to their pages."""
    path = page.file.src_uri
    if path in PAGES.values():
        return markdown
    return relinked(markdown, f"docs/{path}", path)


def relinked(markdown: str, source: str, page: str) -> str:
    """The text of a file of the repository, with links as its page needs them."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        target = PAGES.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(page) or ".")

    return LINK.sub(link, markdown)
