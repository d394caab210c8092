"""What takes the place of the parts of a closed state: every use of it raises."""

from typing import Any

from thinwire.errors import ConfigError


class _Closed:
    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        raise ConfigError(
            "this state is closed, and DDP cannot give up its hook: to train on, wrap "
            "the module anew, model = DDP(model.module), and attach to that"
        )


CLOSED: Any = _Closed()
