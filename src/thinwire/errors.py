"""Exceptions; each message says what is wrong and what to do."""


class ThinwireError(Exception):
    """Base class of all errors that thinwire raises."""


class ConfigError(ThinwireError, ValueError):
    """An option, a model or a state dict that cannot be used."""


class AgreementError(ThinwireError):
    """Ranks have different settings; raised on every rank."""


class WireError(ThinwireError):
    """A peer sent bytes that are not the expected packet."""


class GroupError(ThinwireError):
    """Communication failed: the operation did not complete on this rank."""


class PeerError(GroupError):
    """A peer is dead or stuck, or sends what is not expected; `ranks` names such peers.

    Where two ranks disagree on a message, each names the other, and others name both.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class DeadlockError(GroupError):
    """Every simulated rank waits for another one."""


class InconsistentStateError(ThinwireError):
    """A reduction failed half-way, so the residuals of the ranks do not match."""


class ReplicaError(ThinwireError):
    """Model replicas that should be identical differ."""


class LabError(ThinwireError):
    """A lab cannot be built, found or used."""
