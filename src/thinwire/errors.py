"""Exceptions a user can act on: each message says what was wrong and what to do."""


class ThinwireError(Exception):
    """The root of everything thinwire raises on purpose."""


class ConfigError(ThinwireError, ValueError):
    """An option, a model or a state that cannot be used as it is."""


class AgreementError(ThinwireError):
    """Ranks hold different configurations; raised alike on every one of them."""


class WireError(ThinwireError):
    """Bytes from a peer that are not the packet they should be."""


class GroupError(ThinwireError):
    """Communication failed: the operation did not complete on this rank."""


class PeerError(GroupError):
    """A peer is dead or stuck; `ranks` says which, as far as can be told."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class DeadlockError(GroupError):
    """Every simulated rank waits for another one."""


class TornError(ThinwireError):
    """A reduction failed half-way, so the residuals can no longer be trusted."""


class ReplicaError(ThinwireError):
    """Model replicas that should be identical are not."""


class LabError(ThinwireError):
    """A lab that cannot be built, found or used."""
