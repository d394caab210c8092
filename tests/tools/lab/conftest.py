import pytest

from thinwire.tools.lab import doctor

_SECONDS = 180  # a busy machine takes long to start the processes of hosts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of labs time; skip them, aloud, where there can be none."""
    marked = [item for item in items if item.get_closest_marker("lab")]
    missing = doctor.missing() if marked else []
    for item in marked:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_SECONDS))
    if missing:
        reason = f"no lab can be built here: {'; '.join(missing)}"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
