"""The reference tasks: their data, their models, and `task` to get one by name."""

from experiments.tasks.catalog import TASKS, task

__all__ = ["TASKS", "task"]
