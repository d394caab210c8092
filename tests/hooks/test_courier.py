"""The communication thread: in order, drained on request, gone with its owner."""

import gc
import threading
import time

from thinwire.hooks.courier import Courier


def threads() -> int:
    return sum(thread.name == "thinwire" for thread in threading.enumerate())


def test_jobs_run_in_order_on_another_thread():
    courier, seen = Courier(), []
    for number in range(100):
        courier.submit(lambda n=number: seen.append((n, threading.current_thread())))
    courier.drain()
    assert [number for number, _ in seen] == list(range(100))
    assert threading.current_thread() not in {thread for _, thread in seen}


def test_nothing_starts_without_a_job():
    before = threads()
    courier = Courier()
    courier.drain()
    assert threads() == before


def test_the_thread_ends_with_the_courier():
    gc.collect()
    before = threads()
    courier = Courier()
    courier.submit(threads)
    courier.drain()
    assert threads() == before + 1
    del courier
    gc.collect()
    for _ in range(100):
        if threads() == before:
            break
        time.sleep(0.02)
    assert threads() == before
