"""Calls of libraries that cannot be interrupted, waited for in bounded time."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """The result of a call; `TimeoutError` if it takes longer.

    Its thread is then left behind, and does not keep the process from ending.

    >>> within(60, lambda: 3)
    3
    """
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer.result(seconds)
