"""The communication thread: order of jobs, draining, and its end."""

import gc
import subprocess
import sys
import threading
import time

from thinwire.hooks.comm_thread import CommThread


def threads() -> int:
    return sum(thread.name == "thinwire" for thread in threading.enumerate())


def test_jobs_run_in_order_on_another_thread():
    thread, seen = CommThread(), []
    for number in range(100):
        thread.submit(lambda n=number: seen.append((n, threading.current_thread())))
    thread.drain()
    assert [number for number, _ in seen] == list(range(100))
    assert threading.current_thread() not in {runner for _, runner in seen}


def test_nothing_starts_without_a_job():
    before = threads()
    thread = CommThread()
    thread.drain()
    assert threads() == before


def test_the_thread_ends_when_its_object_is_collected():
    gc.collect()
    before = threads()
    thread = CommThread()
    thread.submit(threads)
    thread.drain()
    assert threads() == before + 1
    del thread
    gc.collect()
    for _ in range(100):
        if threads() == before:
            break
        time.sleep(0.02)
    assert threads() == before


def test_a_process_exits_while_a_job_is_in_torch():
    """The interpreter must not end first: the job's thread then aborts the process."""
    script = (
        "import torch; from thinwire.hooks.comm_thread import CommThread;"
        "a = torch.ones(1000, 1000); thread = CommThread();"
        "thread.submit(lambda: [a.mm(a) for _ in range(5)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
