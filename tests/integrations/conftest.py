from importlib.util import find_spec

from tests import workers

# The real frameworks, where they are installed. Ray is loaded by its own processes.
workers.PRELOADED += [
    name
    for name in (
        "accelerate",
        "transformers.trainer",
        "thinwire.integrations.transformers",
        "lightning",
        "thinwire.integrations.lightning",
    )
    if find_spec(name.partition(".")[0].replace("thinwire", "transformers"))
]
