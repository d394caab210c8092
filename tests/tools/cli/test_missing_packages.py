"""Without the extra, the command names it."""

import sys

import pytest

from thinwire.tools.cli import main


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_package_names_the_extra(monkeypatch, package):
    gone = ("thinwire.tools.cli", f"{package}.")
    for name in [name for name in sys.modules if name.startswith(gone)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as end:
        main(["methods"])
    assert end.value.code == (
        f"Error: the thinwire command needs {package}, which is not installed: "
        "pip install 'thinwire[tools]'"
    )
