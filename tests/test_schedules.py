"""Schedules: every message that is sent is received, and all lists arrive."""

import pytest

from thinwire import schedules
from thinwire.cost import Cost

RANKS = (1, 2, 3, 4, 5, 7, 8, 13, 16)


def halving(rank, ranks):
    return [schedules.halving(rank, range(ranks))]


def bruck(rank, ranks):
    return [schedules.bruck(rank, range(ranks))]


def direct(rank, ranks):
    return [schedules.direct(rank, range(ranks))]


SCHEDULES = [schedules.tree, schedules.butterfly, halving, direct, bruck]


def play(schedule, ranks, take):
    """Take all steps; `take(rank, step, received)` returns what the rank sends."""
    left = [
        [step for part in schedule(r, ranks) for step in part] for r in range(ranks)
    ]
    under_way, halfway = {}, [False] * ranks
    while any(left):
        moved = False
        for rank, steps in enumerate(left):
            if steps and not halfway[rank]:
                step, halfway[rank], moved = steps[0], True, True
                if step.dst is not None:
                    box = under_way.setdefault((rank, step.dst), [])
                    box.append((step.sends, step.phase, take(rank, step, None)))
            if steps and (steps[0].src is None or under_way.get((steps[0].src, rank))):
                step = steps.pop(0)
                halfway[rank], moved = False, True
                if step.src is not None:
                    sends, phase, sent = under_way[step.src, rank].pop(0)
                    assert (list(sends), phase) == (list(step.receives), step.phase)
                    take(rank, step, sent)
        assert moved, "ranks wait for each other"
    assert not any(under_way.values())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("schedule", [schedules.tree, schedules.butterfly])
def test_everyone_hears_of_everyone(schedule, ranks):
    known = [{rank} for rank in range(ranks)]

    def take(rank, step, received):
        known[rank] |= received or set()
        return set(known[rank])

    play(schedule, ranks, take)
    assert known == [set(range(ranks))] * ranks


@pytest.mark.parametrize("scatter", [halving, direct])
@pytest.mark.parametrize("ranks", RANKS)
def test_every_block_reaches_its_owner_with_every_rank_s_part_once(ranks, scatter):
    held = [{block: [rank] for block in range(ranks)} for rank in range(ranks)]

    def take(rank, step, received):
        if received is None:
            return {block: held[rank].pop(block) for block in step.sends}
        for block, parts in received.items():
            held[rank][block] += parts
        return None

    play(scatter, ranks, take)
    for rank, blocks in enumerate(held):
        assert {block: sorted(parts) for block, parts in blocks.items()} == {
            rank: list(range(ranks))
        }


@pytest.mark.parametrize("ranks", RANKS)
def test_everyone_gets_every_list_once(ranks):
    held = [[rank] for rank in range(ranks)]

    def take(rank, step, received):
        if received is None:
            assert set(step.sends) <= set(held[rank])
            return step.sends
        held[rank] += received
        return None

    play(bruck, ranks, take)
    assert [sorted(lists) for lists in held] == [list(range(ranks))] * ranks


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", RANKS)
def test_no_rank_is_busier_than_the_first(schedule, ranks):
    costs = []
    for rank in range(ranks):
        steps = [step for part in schedule(rank, ranks) for step in part]
        costs.append(schedules.cost(steps, 10))
    assert max(cost.nbytes for cost in costs) == costs[0].nbytes
    assert max(cost.rounds for cost in costs) == costs[0].rounds


def test_what_is_received_in_a_step_of_its_own_is_awaited():
    cost = schedules.cost(schedules.tree(1, 2)[1], 10)
    assert cost == Cost(2, 10)
    assert cost.awaited == 10
