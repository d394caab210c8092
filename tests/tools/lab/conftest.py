import pytest

from thinwire.tools.lab import doctor


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, aloud, what needs a lab where there can be none."""
    marked = [item for item in items if item.get_closest_marker("lab")]
    missing = doctor.missing() if marked else []
    if missing:
        reason = f"no lab can be built here: {'; '.join(missing)}"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
