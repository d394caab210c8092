"""What takes the place of the parts of a closed state: every use of it raises."""

from typing import Any

from thinwire.errors import ConfigError


class _Closed:
    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        raise ConfigError(
            "this state is closed: to train on, attach again. DDP cannot give up its "
            "hook, so wrap its module anew before, model = DDP(model.module)"
        )


CLOSED: Any = _Closed()
