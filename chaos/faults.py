"""How a rank hurts itself, or asks the conductor to hurt its network."""

import os
import random
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from chaos.plan import Fault
from chaos.worker import Line
from thinwire.hooks import saving
from thinwire.hooks.state import State

PACKET = b"TW"
# The conductor's part takes longer than several steps: this rank waits for it.
ASKED = ("cut", "long cut", "slow host", "flipped stream")
AT_ONCE = ("kill in a save", *ASKED)


class Hurt:
    """The faults of one rank; `until` is the last step that others would notice."""

    def __init__(self, line: Line, state: State, store_port: int, until: int) -> None:
        self.step = 0
        self._until = until
        self._line = line
        self._state = state
        self._store_port = store_port

    def suffer(self, fault: Fault) -> None:
        """Begin a fault, now or in a moment."""
        action: dict[str, Callable[[Fault], None]] = {
            "kill": self._kill,
            "kill in a save": self._kill_in_a_save,
            "stop": self._stop,
            "long stop": self._stop,
            **dict.fromkeys(ASKED, self._ask),
            "closed socket": self._close_socket,
            "flipped bit": self._flip_bit,
        }
        act = action[fault.kind]
        if fault.delay and fault.kind not in AT_ONCE:
            timer = Timer(fault.delay, self._unless_late, [act, fault])
            timer.daemon = True
            timer.start()
        else:
            act(fault)

    def _unless_late(self, act: Callable[[Fault], None], fault: Fault) -> None:
        if self.step <= self._until:
            act(fault)

    def _kill(self, fault: Fault) -> None:
        del fault
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_in_a_save(self, fault: Fault) -> None:
        """Be killed before a write or an fsync of the next save, rank 0 has more."""
        drawn = random.Random(fault.detail)
        syncs = 6 if fault.ranks == (0,) else 2  # as many as rank 0 and others have
        places: list[tuple[Any, str, int]] = [
            (saving._Counted, "write", 40),  # noqa: SLF001 - on purpose
            (os, "fsync", syncs),
        ]
        owner, name, most = drawn.choice(places)
        left, action = drawn.randrange(most), getattr(owner, name)

        def act_or_die(*given: Any) -> Any:
            nonlocal left
            if not left:
                self._kill(fault)
            left -= 1
            return action(*given)

        setattr(owner, name, act_or_die)

    def _stop(self, fault: Fault) -> None:
        self._line.say("hurt", fault)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _ask(self, fault: Fault) -> None:
        self._line.say("hurt", fault)
        self._line.wait()

    def _close_socket(self, fault: Fault) -> None:
        """Shut one of the connections to other ranks, as a reset would."""
        found = sorted(self._connections())
        if found:
            chosen = socket.socket(fileno=os.dup(found[fault.detail % len(found)]))
            self._line.say("hurt", fault)
            with suppress(OSError):
                chosen.shutdown(socket.SHUT_RDWR)
            chosen.close()

    def _connections(self) -> list[int]:
        found = []
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers
            with suppress(OSError, ValueError):
                if "socket" in str(Path(f"/proc/self/fd/{number}").readlink()):
                    each = socket.socket(fileno=os.dup(number))
                    if each.family in (socket.AF_INET, socket.AF_INET6):
                        ends = each.getpeername()[1], each.getsockname()[1]
                        found += [number] if self._store_port not in ends else []
                    each.close()
        return found

    def _flip_bit(self, fault: Fault) -> None:
        """Flip a bit of the next packet with a checksum that arrives."""
        group: Any = self._state._transport  # noqa: SLF001 - on purpose
        transport = group._transport  # noqa: SLF001
        swap = transport.swap
        flips = random.Random(fault.detail)

        def swap_and_flip(*given: Any) -> Any:
            arrived = swap(*given)
            for _, body in arrived:
                if transport.swap is not swap and _is_packet(body):
                    body[flips.randrange(len(body))] ^= 1 << flips.randrange(8)
                    transport.swap = swap
                    self._line.say("hurt", fault)
            return arrived

        transport.swap = swap_and_flip


def _is_packet(body: Any) -> bool:
    return bool(bytes(body[: len(PACKET)].tolist()) == PACKET)
