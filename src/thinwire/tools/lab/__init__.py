"""Hosts on slow links on one machine, with real TCP: where times are measured."""

from thinwire.tools.lab.lab import Lab

__all__ = ["Lab"]
