"""A lab as a context manager: hosts on a switch while the context lasts."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from thinwire.errors import ConfigError, LabError
from thinwire.tools.lab import doctor, network, record, runner
from thinwire.tools.lab.namespaces import Holder
from thinwire.tools.lab.record import Owner, Record
from thinwire.tools.lab.shaping import parse_loss, parse_rates
from thinwire.tools.quantities import parse_duration

_LONGEST_DELAY = 10.0
_POLL_SECONDS = 0.01
_GRACE_SECONDS = 30.0


class Lab:
    """Hosts on this machine that talk TCP over shaped links, only to each other.

    `rate` is one for all hosts or one for each, separated by commas: "1gbit,100mbit".
    `delay` and `loss` hold for every message between two hosts. Leaving the context
    takes everything away; so does the end of this process, even if it is killed.
    """

    def __init__(
        self,
        hosts: int,
        rate: str = "1gbit",
        *,
        delay: str = "0ms",
        loss: str = "0%",
        name: str = "",
    ) -> None:
        late = parse_duration(delay, "delay")
        if late > _LONGEST_DELAY:
            raise ConfigError(f"delay is {delay!r}: give at most {_LONGEST_DELAY:g}s")
        rates, lost = parse_rates(rate, hosts), parse_loss(loss)
        name = name or record.new_name()
        self.record = Record(name, rates, Owner.me(), late, lost)
        self._holder: Holder | None = None

    @classmethod
    def find(cls, name: str = "") -> "Lab":
        """The running lab of a name, or the only running lab."""
        found = _choose(name)
        lab = cls(found.hosts, name=found.name)
        lab.record = found
        return lab

    def up(self) -> None:
        """Build the lab, completely or not at all."""
        if self.record.delay or self.record.loss:
            doctor.check_netem()
        self.record.create()
        try:
            names = self.record.names
            names.write_text(network.names(self.record))
            self._holder = Holder.start(self.record.hosts, names, self.record.file)
            names.unlink()  # the hosts have it
            owner = Owner.of(self._holder.switch)
            built = replace(self.record, owner=owner, pids=self._holder.hosts)
            network.build(built)
            built.replace()
            self.record = built
        except BaseException:
            self.down()
            raise

    def stay(self) -> None:
        """Keep the lab after this process ends, until `down`."""
        if self._holder is not None:
            self._holder.stay()
            self._holder = None

    def down(self) -> None:
        """Remove the lab and end its processes."""
        if self._holder is not None:
            self._holder.end()
            self._holder = None
        elif self.record.pids:
            _kill(self.record.owner)
        self.record.forget()

    def run(
        self,
        command: Sequence[str],
        *,
        ranks_per_host: int = 1,
        tell: runner.Tell = runner.print_line,
        timeout: float | None = None,
    ) -> runner.Outcome:
        """Run a command on every host; `tell` gets each line, with its rank."""
        ranks = runner.Ranks(self.record, ranks_per_host)
        return runner.run(ranks, command, tell=tell, timeout=timeout)

    def cut(self, host: int) -> None:
        """Drop all traffic of a host; its connections stay open."""
        network.cut(self.record, host)

    def heal(self, host: int) -> None:
        """Undo a cut."""
        network.heal(self.record, host)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._holder is not None:
            self.down()


def _kill(owner: Owner) -> None:
    """End a lab that another process has built."""
    end = time.monotonic() + _GRACE_SECONDS
    while owner.lives:
        with suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise LabError(f"process {owner.pid} does not end")
        time.sleep(_POLL_SECONDS)


def _choose(name: str) -> Record:
    found = [each for each in record.find_all() if each.pids]
    chosen = [each for each in found if name in ("", each.name)]
    names = ", ".join(each.name for each in found)
    if len(chosen) > 1:
        raise LabError(f"several labs are up ({names}): choose one with --lab NAME")
    if not chosen and found:
        raise LabError(f"there is no lab {name!r}: there are {names}")
    if not chosen:
        raise LabError("no lab is up: start one with thinwire lab up --hosts 4")
    return chosen[0]
