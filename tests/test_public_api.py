"""What `import thinwire` gives, and what it must not do."""

import subprocess
import sys

import thinwire


def test_all_is_sorted_and_complete():
    assert thinwire.__all__ == sorted(thinwire.__all__)
    modules = {"catalog", "channel", "codecs", "collectives", "cost", "errors"}
    modules |= {"feedback", "groups", "hooks", "kernels", "layout", "reducers"}
    modules |= {"sparse", "version", "wire"}
    public = {name for name in vars(thinwire) if not name.startswith("_")}
    assert public - modules <= set(thinwire.__all__)
    assert all(hasattr(thinwire, name) for name in thinwire.__all__)


def test_importing_starts_nothing():
    script = (
        "import threading, torch, sys; before = threading.active_count();"
        "import thinwire;"
        "heavy = {'numba', 'triton', 'rich', 'typer'} & set(sys.modules);"
        "assert not heavy, heavy;"
        "assert threading.active_count() == before;"
        "assert not torch.distributed.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
