"""The walk of one bucket in ARCHITECTURE.md is the one that a traced step takes."""

import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from tests.test_docs import ROOT, rows
from tests.workers import pool

WARM = 5  # the units are the buckets after two steps, candidates come a step later
HOPS = [
    (row[0].strip("`"), row[1])
    for row in rows(
        (ROOT / "ARCHITECTURE.md").read_text(), "| hop | thread | what happens |"
    )
]


class Trace:
    """The calls of functions in thinwire, by thread, in the order of their starts."""

    def __init__(self):
        self.calls = []
        self.recording = False

    def note(self, frame, event, argument):
        module = frame.f_globals.get("__name__", "")
        if self.recording and event == "call" and module.startswith("thinwire."):
            name = f"{module.removeprefix('thinwire.')}.{frame.f_code.co_qualname}"
            self.calls.append((name, threading.current_thread().name))

    def __enter__(self):
        sys.setprofile(self.note)
        threading.setprofile(self.note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        threading.setprofile(None)


def traced_step(group):
    train(Trace())  # compiles the kernels, which takes long under a profile
    with Trace() as trace:
        train(trace)
    return trace.calls


def train(trace):
    torch.manual_seed(0)
    model = DDP(nn.Linear(200, 100, bias=False))
    thinwire.attach(model, "spardl", density=0.01)
    for step in range(WARM + 1):
        trace.recording = step == WARM
        model(torch.randn(4, 200)).square().sum().backward()
    trace.recording = False


@pytest.mark.processes
def test_a_bucket_takes_the_documented_hops():
    for calls in pool(2).run(traced_step):
        first = {name: n for n, (name, _) in reversed(list(enumerate(calls)))}
        threads = dict(calls)
        missing = [hop for hop, _ in HOPS if hop not in first]
        assert not missing, [name for name, _ in calls]
        assert sorted(HOPS, key=lambda hop: first[hop[0]]) == HOPS
        for hop, thread in HOPS:
            assert (
                threads[hop] == {"autograd": "MainThread", "comm": "thinwire"}[thread]
            )
