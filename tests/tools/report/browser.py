"""A browser for tests: the machine's, or one that is installed.

    python -m tests.tools.report.browser

Installs one where there is none, and fails aloud where it cannot.
"""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALLERS = (
    (sys.executable, "-m", "playwright", "install", "chromium"),
    ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "chromium"),
)


def find() -> str | None:
    """Where a browser is that the driver can steer."""
    installed = next((path for path in map(shutil.which, NAMES) if path), None)
    return installed or _drivers_own()


def install() -> str | None:
    """Try everything there is; what was found then."""
    for command in INSTALLERS:
        if find() is None and shutil.which(command[0]):
            if command[0] == "apt-get":
                subprocess.run(["apt-get", "update", "--quiet"], check=False)
            subprocess.run(command, check=False)
    return find()


def options() -> dict[str, object]:
    """How to start it: as root it refuses to run in its sandbox."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return {"executable_path": find(), "args": ["--no-sandbox"] if root else []}


def _drivers_own() -> str | None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as driver:
        path = driver.chromium.executable_path
    return path if os.access(path, os.X_OK) else None


if __name__ == "__main__":
    found = install()
    print(found or "no browser here, and none could be installed", file=sys.stderr)  # noqa: T201
    sys.exit(found is None)
