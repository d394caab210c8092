"""The measured speed of a machine, what follows from it, and its file."""

import signal
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from tests.speeds import ROUNDS
from thinwire.catalog import codec
from thinwire.errors import GroupError
from thinwire.groups import simulate
from thinwire.sparse import SparseVector
from thinwire.tools import round_timing
from thinwire.tools.plan import calibrate, machine, neighbours, processes
from thinwire.tools.plan.calibrate import Metered
from thinwire.tools.plan.choice import Choice
from thinwire.tools.plan.estimated import EstimatedCodec
from thinwire.tools.plan.processes import ProcessTimes
from thinwire.tools.plan.processor import Sample, Speed
from thinwire.tools.plan.transport import transport_time


def test_a_fit_finds_the_line_and_never_a_negative_factor():
    seen = [(1.0, n, b, p) for n, b, p in [(9, 4, 1), (2, 8, 3), (5, 0, 2), (1, 1, 9)]]
    line = (2.0, 3.0, 0.0, 0.5)
    samples = [Sample(at, np.dot(line, at), 2 * np.dot(line, at)) for at in seen]
    speed = Speed.of(samples)
    assert speed.mean == pytest.approx(line, abs=1e-9)
    assert speed.seconds(seen[0], share=1) == pytest.approx(2 * np.dot(line, seen[0]))
    assert speed.seconds(seen[0], share=8) == pytest.approx(8 * np.dot(line, seen[0]))
    falling = [Sample(at, 1 / at[1], 1 / at[1]) for at in seen]
    assert min(Speed.of(falling).mean) == 0.0


@pytest.mark.parametrize("method", ["dense", "bf16", "gtopk:variant=tree", "spardl"])
def test_reductions_are_measured_at_every_point(method, monkeypatch):
    points = ((3000, 2, 0.01), (6000, 2, 0.1), (1000, 4, 0.05), (2000, 4, 0.01))
    seen, messages = [], []
    fit = Speed.of
    monkeypatch.setattr(
        Speed, "of", lambda samples: seen.extend(samples) or fit(samples)
    )
    choice = Choice.parse(method)
    speed = calibrate.measure({"it": choice}, points, tell=messages.append)["it"]
    assert messages == ["it, 1 of 2", "it, 2 of 2"]
    assert len(seen) >= len(points)
    assert all(0 < sample.mean <= sample.busiest for sample in seen)
    assert min(*speed.mean, *speed.busiest) >= 0
    assert speed.seconds(seen[0].features, share=1.0) > 0


def test_a_slow_moment_is_not_the_machine_s_speed(monkeypatch):
    """A slow moment is in one sweep over the methods, which has each method once."""
    spent = iter([[40.0, 60.0], [40.0, 60.0], [1.0, 3.0], [1.0, 3.0]])
    monkeypatch.setattr(calibrate, "_spent", lambda *_: next(spent))
    monkeypatch.setattr(Speed, "of", lambda samples: samples)
    choices = {method: Choice.parse(method) for method in ("topk", "gtopk")}
    for (sample,) in calibrate.measure(choices, [(1000, 2, 0.01)]).values():
        assert (sample.mean, sample.busiest) == (2.0, 3.0)


def test_processes_measure_in_turns_and_what_is_short_more_often(monkeypatch):
    seconds, order = {10: 0.005, 20: 0.3}, []

    def slowest(_, call):
        call()
        return seconds[order[-1]]

    monkeypatch.setattr(round_timing, "measure", lambda _: ROUNDS)
    monkeypatch.setattr(round_timing, "slowest", slowest)
    monkeypatch.setattr(
        calibrate, "gradient", lambda size, *_: order.append(size) or torch.ones(size)
    )
    choices = [Choice.parse("dense")]
    (found,) = simulate(
        1, lambda group: processes.measure_here(choices, [10, 20], group)
    )
    assert found == ProcessTimes(ROUNDS, [[0.005, 0.3]])
    assert order == [10, 10, 20, 20, *9 * [10, 10, 10, 10, 20]]


def test_only_some_methods_hold_memory_at_once(monkeypatch):
    alive, most, turns = set(), [], []

    class Lane:
        def __init__(self, choice, grad, _):
            self.label, self.walls = choice.label, [float(len(grad))]
            alive.add(id(self))

        def take_turn(self):
            turns.append(self.label)
            most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    monkeypatch.setattr(round_timing, "measure", lambda _: ROUNDS)
    monkeypatch.setattr(processes, "_Timed", Lane)
    monkeypatch.setattr(processes, "_TOGETHER", 2)
    methods = ("dense", "bf16", "topk")
    choices = [Choice.parse(method) for method in methods]
    (found,) = simulate(
        1, lambda group: processes.measure_here(choices, [10, 20], group)
    )
    assert found == ProcessTimes(ROUNDS, 3 * [[10.0, 20.0]])
    assert max(most) == 4
    labels = [choice.label for choice in choices for _ in range(2)]
    assert turns == 9 * labels[:4] + 9 * labels[4:]


def test_what_the_group_does_is_not_counted():
    def body(group):
        metered = Metered(group)
        start = metered.now()
        for _ in range(20):
            metered.all_gather(torch.zeros(1_000_000, dtype=torch.uint8), nbytes=None)
        inside, all_of_it = metered.traffic.wait, metered.now() - start
        return inside / all_of_it

    assert min(simulate(2, body)) > 0.5


@pytest.mark.processes
def test_processes_tell_what_rounds_and_reductions_take():
    choices = [Choice.parse("dense"), Choice.parse("spardl:teams=2", codec="raw")]
    found = processes.measure(choices, 2, sizes=[1000, 3000])
    for curve in (found.rounds.exchange, found.rounds.direct, found.rounds.all_reduce):
        assert [nbytes for nbytes, _ in curve] == sorted({n for n, _ in curve})
        assert 0 < curve[0][1] <= curve[-1][1]
    assert [len(walls) for walls in found.reductions] == [2, 2]
    assert all(wall > 0 for walls in found.reductions for wall in walls)


@pytest.mark.processes
def test_processes_that_fail_say_so(capfd):
    with pytest.raises(GroupError, match="3 processes could not"):
        processes.measure([Choice.parse("spardl:teams=2")], 3, sizes=[1000])
    assert "does not divide 3 ranks" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("cores", "share", "others", "count"),
    [(2, 1.0, 0, 2), (2, 4.0, 1, 8), (2, 1.7, 1, 4), (16, 1.0, 3, 4), (16, 4.0, 7, 8)],
)
def test_processes_crowd_this_machine_alike(cores, share, others, count, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert processes.count(share, others) == count


def test_the_overhead_is_fitted_to_reductions_without_rounds(measurements, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    dense, sharing = Choice.parse("dense"), machine.Sharing(processes=4)
    simulated = [4 * (1.0 + 2.0 * size) for size in processes.SIZES]
    moved = [transport_time(dense, size, 4, ROUNDS).seconds for size in processes.SIZES]
    walls = [5.0 + 3.0 * s + m for s, m in zip(simulated, moved, strict=True)]
    monkeypatch.setattr(
        processes, "measure", lambda choices, count: ProcessTimes(ROUNDS, [walls])
    )
    found = machine.known([dense], sharing=sharing).overhead(dense, sharing)
    assert found.factor == pytest.approx(3.0)
    assert found.constant == pytest.approx(5.0, abs=0.01)


@pytest.fixture
def measurements(tmp_path, monkeypatch):
    """What was measured, in a cache of its own; measuring itself takes no time."""
    done = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    walls = [1.0, 2.0, 3.0]
    monkeypatch.setattr(
        processes,
        "measure",
        lambda choices, count: (
            done.append(f"{len(choices)} by {count}")
            or ProcessTimes(ROUNDS, [walls] * len(choices))
        ),
    )
    speed = Speed((1.0, 2.0, 0.0, 0.0, 0.0), (1.0, 2.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(
        calibrate,
        "measure",
        lambda choices, tell: {
            name: done.append(each.label) or speed for name, each in choices.items()
        },
    )
    return done


def test_a_machine_is_measured_once(measurements):
    topk, bf16 = Choice.parse("topk", 0.01), Choice.parse("bf16")
    first = machine.known([topk])
    assert measurements == ["topk", "1 by 2"]
    # Another density is the same speed; another method or codec is not.
    assert machine.known([Choice.parse("topk", 0.5)]) == first
    assert measurements == ["topk", "1 by 2"]
    machine.known([topk, bf16])
    machine.known([Choice.parse("topk", 0.01, "raw")])
    assert measurements[2:] == ["bf16", "1 by 2", "topk", "1 by 2"]
    # More processes are measured without simulating anew.
    machine.known([topk, bf16], sharing=machine.Sharing(processes=8))
    assert measurements[6:] == ["2 by 8"]
    again = machine.known([topk], anew=True)
    assert again == first
    assert measurements[-2:] == ["topk", "1 by 2"]


def test_neighbours_are_busy_while_it_is_measured(measurements, monkeypatch):
    @contextmanager
    def busy(count):
        measurements.append(f"{count} busy")
        yield
        measurements.append("quiet")

    monkeypatch.setattr(neighbours, "busy", busy)
    topk = Choice.parse("topk")
    machine.known([topk], sharing=machine.Sharing(others=3))
    machine.known([topk], sharing=machine.Sharing(others=3))
    assert measurements == ["3 busy", "topk", "quiet", "1 by 2"]
    found = machine.known([topk])
    assert measurements[4:] == ["0 busy", "topk", "quiet", "1 by 2"]
    assert {machine.key(topk, 3), machine.key(topk)} == found.speeds.keys()


@pytest.mark.processes
def test_neighbours_come_and_go(monkeypatch):
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda *a, **k: started.append(start(*a, **k)) or started[-1],
    )
    with neighbours.busy(1):
        (process,) = started
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL


def test_several_teams_share_a_speed(measurements):
    choices = [Choice.parse(f"spardl:teams={teams}") for teams in (1, 2, 4)]
    found = machine.known(choices)
    assert len(found.speeds) == 2  # those of one team, and of several
    assert machine.key(choices[1]) == machine.key(choices[2])
    assert measurements == ["spardl teams=1", "spardl teams=4", "2 by 2"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"speeds": 3, "rounds": {}}'])
def test_a_file_that_cannot_be_read_is_made_again(measurements, content):
    machine.known([Choice.parse("topk")])
    (file,) = machine.cache_directory().iterdir()
    file.write_text(content)
    machine.known([Choice.parse("topk")])
    assert measurements == ["topk", "1 by 2"] * 2


def test_where_nothing_can_be_kept_it_is_measured_again(measurements, tmp_path):
    (tmp_path / "thinwire").write_text("a file where the folder should be")
    for _ in range(2):
        machine.known([Choice.parse("topk")])
    assert measurements == ["topk", "1 by 2"] * 2


@pytest.mark.parametrize("name", ["rice+log4", "varint+bfloat16", "huffman+deflate"])
def test_a_weighed_codec_is_about_right(name):
    generator = torch.Generator().manual_seed(3)
    size, k = 2_000_000, 20_000
    indices, _ = torch.randperm(size, generator=generator)[:k].int().sort()
    values = 1 + torch.empty(k).exponential_(generator=generator)
    vector = SparseVector(indices, values, size)
    actual = codec(name).encode(vector).body.numel()
    assert EstimatedCodec(codec(name)).nbytes(size, k) == pytest.approx(actual, rel=0.1)


@pytest.mark.parametrize(("share", "factor"), [(1.0, 1.0), (2.0, 0.5), (4.0, 7 / 24)])
def test_ranks_that_sleep_leave_their_core_to_others(share, factor):
    tree = Choice.parse("gtopk:variant=tree")
    alone = transport_time(tree, 10_000, 8, ROUNDS)
    least = transport_time(tree, 10_000, 8, ROUNDS, share=1e9).waits
    shared = transport_time(tree, 10_000, 8, ROUNDS, share=share)
    own = (alone.waits - least) / (1 - 7 / 24)
    assert shared.waits == pytest.approx(alone.waits - (1 - factor) * own)
    assert shared.nbytes == alone.nbytes
    spardl = Choice.parse("spardl")
    whole = transport_time(spardl, 10_000, 8, ROUNDS)
    assert transport_time(spardl, 10_000, 8, ROUNDS, share=share) == whole
