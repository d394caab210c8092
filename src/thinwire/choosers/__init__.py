"""Choosers: collectives that pick another collective in every step."""

from thinwire.choosers.auto import Auto
from thinwire.choosers.auto_warmup import AutoWarmup
from thinwire.choosers.by_size import BySize
from thinwire.choosers.chooser import Choice, Chooser, choose
from thinwire.choosers.warmup import Warmup

__all__ = ["Auto", "AutoWarmup", "BySize", "Choice", "Chooser", "Warmup", "choose"]
