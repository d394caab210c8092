from importlib.util import find_spec

import pytest

from tests import workers

# Ray is not among them: it starts processes of its own.
FRAMEWORKS = {
    "accelerate": ["accelerate"],
    "transformers": ["transformers.trainer", "thinwire.integrations.transformers"],
    "lightning": ["lightning", "thinwire.integrations.lightning"],
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import frameworks once, for all processes that are forked, if they are tested."""
    if any(item.get_closest_marker("frameworks") for item in session.items):
        for name, modules in FRAMEWORKS.items():
            workers.PRELOADED += modules if find_spec(name) else []
