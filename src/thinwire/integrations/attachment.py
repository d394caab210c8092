"""Attachment: what the callbacks of all frameworks do."""

from datetime import timedelta

from torch import nn

from thinwire.errors import ConfigError
from thinwire.hooks.attach import attach
from thinwire.hooks.options import Options, Scope
from thinwire.hooks.parts import Scaler
from thinwire.hooks.state import State


class AttachOptions(Options, total=False):
    """What `attach` takes, but for what the framework knows."""

    density: float
    scope: Scope
    timeout: float | timedelta | None


class Attachment:
    """The arguments of `attach`, given before a framework has wrapped the model.

    The state lives until `begin` gets another model: frameworks save and train again
    after the end of a training.
    """

    def __init__(self, method: str, options: AttachOptions) -> None:
        self._method, self._options = method, options
        self._model: nn.Module | None = None
        self._state: State | None = None

    @property
    def state(self) -> State:
        """What `attach` returned when training began."""
        if self._state is None:
            raise ConfigError(
                "thinwire is not attached yet: its callback does that when training "
                "begins"
            )
        return self._state

    @property
    def begun(self) -> bool:
        """Whether there is a state."""
        return self._state is not None

    def begin(
        self,
        model: nn.Module,
        *,
        clip: float | None = None,
        grad_scaler: Scaler | None = None,
    ) -> State:
        """Attach to a wrapped model, unless this has been done before.

        `clip` is the framework's: one that the user has given comes first. All ranks
        call this together.
        """
        if self._state is None or self._model is not model:
            self.end()
            options = AttachOptions(clip=clip or None)
            options |= self._options
            self._state = attach(
                model, self._method, grad_scaler=grad_scaler, **options
            )
            self._model = model
        return self._state

    def end(self) -> None:
        """Close the state, if there is one."""
        if self._state is not None:
            self._state.close()
        self._model = self._state = None

    def metrics(self) -> dict[str, float]:
        """What the state counts, under names for a logger."""
        return {f"thinwire/{name}": n for name, n in self.state.metrics().items()}
