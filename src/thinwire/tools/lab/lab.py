"""A lab as a context manager: hosts on a switch while the context lasts."""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from thinwire.errors import LabError
from thinwire.tools.lab import network, record, runner
from thinwire.tools.lab.cleanup import CleanupProcess
from thinwire.tools.lab.record import Owner, Record
from thinwire.tools.lab.shaping import parse_rates


class Lab:
    """Hosts on this machine that talk TCP over shaped links, only to each other.

    `rate` is one for all hosts or one for each, separated by commas: "1gbit,100mbit".
    Leaving the context takes everything away; so does the end of this process, even
    if it is killed.
    """

    def __init__(self, hosts: int, rate: str = "1gbit", *, name: str = "") -> None:
        rates = parse_rates(rate, hosts)
        self.record = Record(name or record.new_name(), rates, Owner.me())
        self._cleanup: CleanupProcess | None = None

    @classmethod
    def find(cls, name: str = "") -> "Lab":
        """The running lab of a name, or the only running lab."""
        found = _choose(name)
        lab = cls(found.hosts, name=found.name)
        lab.record = found
        return lab

    def up(self) -> None:
        """Build the lab, completely or not at all."""
        self.record.create()
        try:
            self._cleanup = CleanupProcess()
            for namespace in self.record.namespaces:
                self._cleanup.remove_namespace(namespace)
            self._cleanup.remove_file(self.record.names)
            self._cleanup.remove_file(self.record.file)
            network.build(self.record)
        except BaseException:
            self.down()
            raise

    def stay(self) -> None:
        """Keep the lab after this process ends, until `down`."""
        self.record = replace(self.record, owner=None)
        self.record.replace()
        self._dismiss()

    def down(self) -> None:
        """Remove the lab and end its processes."""
        network.remove(self.record)
        self.record.forget()
        self._dismiss()

    def run(
        self,
        command: Sequence[str],
        *,
        tell: runner.Tell = runner.print_line,
        timeout: float | None = None,
    ) -> runner.Outcome:
        """Run a command on every host; `tell` gets each line, with its host."""
        return runner.run(self.record, command, tell=tell, timeout=timeout)

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
        self.down()

    def _dismiss(self) -> None:
        if self._cleanup is not None:
            self._cleanup.dismiss()
            self._cleanup = None


def sweep() -> list[str]:
    """Remove labs whose process was killed; return their names."""
    found = [each for each in record.find_all() if each.abandoned]
    for each in found:
        network.remove(each)
        each.forget()
    return [each.name for each in found]


def sweep_strays() -> list[str]:
    """Remove namespaces of labs without a record; return their names."""
    known = {space for each in record.find_all() for space in each.namespaces}
    names = sorted(network.existing() - known)
    strays = [name for name in names if name.startswith(f"{record.PREFIX}-")]
    for stray in strays:
        network.remove_namespace(stray)
    return strays


def _choose(name: str) -> Record:
    found = [each for each in record.find_all() if not each.abandoned]
    chosen = [each for each in found if name in ("", each.name)]
    names = ", ".join(each.name for each in found)
    if len(chosen) > 1:
        raise LabError(f"several labs are up ({names}): choose one with --lab NAME")
    if not chosen and found:
        raise LabError(f"there is no lab {name!r}: there are {names}")
    if not chosen:
        raise LabError("no lab is up: start one with thinwire lab up --hosts 4")
    return chosen[0]
