"""The protocol under every single kill, every pair of kills, and many random schedules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.job.protocol import (
    Begin,
    Divergence,
    Enlist,
    Evicted,
    Gather,
    MemberState,
    Payload,
    Total,
    Verdict,
    check,
    divide,
    hand_over,
    may_go_on,
    right_digest,
    run_member,
)
from tests.simulators.mpi import Courier, Kill, World, undisturbed

ROUNDS, LANES = 3, 7


def assert_right(world: World) -> None:
    """Survivors ended with all rounds, bitwise the state of an undisturbed run."""
    ended = [m for m in world.members if m.status == "ended" and m.memory.active]
    assert all(m.status in ("ended", "dead", "evicted", "stray", "lost") for m in world.members)
    for member in ended:
        assert member.memory.done == world.rounds - 1
        assert member.worker.state == undisturbed(world.rounds, world.lanes, world.sums)


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_undisturbed(members: int) -> None:
    world = World(members, ROUNDS, seed=0).run()
    assert_right(world)
    assert [m.status for m in world.members] == ["ended"] * members
    assert sum(m.worker.computed for m in world.members) == ROUNDS * LANES
    # Begin, Gather, Cast, Enlist; Work and Reduce per round, and once more to leave: no other message in steady state.
    assert all(m.operations == 4 + 2 * ROUNDS + 2 for m in world.members)


@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_every_single_kill(members: int) -> None:
    points = World(members, ROUNDS, seed=0).run().trace
    for kill in points:
        for seed in range(6):
            world = World(members, ROUNDS, seed=seed, kills=[kill]).run()
            assert_right(world)
            assert sum(m.status == "ended" for m in world.members) >= members - 1


@pytest.mark.parametrize("members", [2, 3, 4, pytest.param(5, marks=pytest.mark.explore)])
def test_every_pair_of_kills(members: int) -> None:
    for first in World(members, ROUNDS, seed=0).run().trace:
        points = World(members, ROUNDS, seed=1, kills=[first]).run().trace
        later = points[points.index(first) :] if first in points else points
        for second in later:
            if second.rank != first.rank:
                world = World(members, ROUNDS, seed=1, kills=[first, second]).run()
                assert_right(world)
                assert sum(m.status == "ended" for m in world.members) >= members - 2


def random_world(seed: int) -> World:
    dice = random.Random(seed)
    members, spares, rounds = dice.randint(1, 6), dice.choice([0, 0, 1, 2]), dice.randint(1, 5)
    kills = [
        Kill(dice.randrange(members + spares), dice.randint(1, 40), dice.random() < 0.5)
        for _ in range(dice.choice([0, 1, 2, 3, 6]))
    ]
    reforms = [dice.randint(1, 120) for _ in range(dice.choice([0, 0, 0, 1, 2, 3]))]
    # A flipped state can be found only while most of those that saw it right are alive.
    flips = {dice.randrange(members): dice.randrange(rounds)} if members > 2 * len(kills) + 2 else {}
    lanes = dice.randint(members, 12)
    strays = [
        Kill(dice.randrange(members), dice.randint(1, 40), dice.random() < 0.5)
        for _ in range(dice.choice([0, 1, 2]) if reforms and not flips else 0)
    ]
    sums = dice.choice([1, 1, 2, 3])
    return World(
        members, rounds * sums, seed=seed, lanes=lanes, spares=spares, kills=kills, reforms=reforms, flips=flips,
        strays=strays, sums=sums,
    )  # fmt: skip


@pytest.mark.parametrize("block", range(8))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 2000, (block + 1) * 2000):
        try:
            assert_right(random_world(seed).run())
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_spare_takes_the_place_of_the_dead() -> None:
    world = World(3, ROUNDS, seed=3, spares=1, kills=[Kill(1, 8, True)]).run()
    assert_right(world)
    assert world.members[3].memory.active
    assert world.members[3].worker.computed > 0


@pytest.mark.parametrize("sums", [2, 3])
@pytest.mark.parametrize("members", [2, 3])
def test_every_single_kill_in_steps_of_several_sums(members: int, sums: int) -> None:
    """A spare joins between two steps, wherever its predecessor died."""
    refused = joined = 0
    for kill in World(members, 2 * sums, seed=0, spares=1, sums=sums).run().trace:
        for seed in range(6):
            world = World(members, 2 * sums, seed=seed, spares=1, kills=[kill], sums=sums).run()
            assert_right(world)
            assert sum(m.status == "ended" for m in world.members) >= members
            refused += world.refused
            joined += world.members[members].worker.computed > 0
    assert joined and refused


@pytest.mark.parametrize("members", [2, pytest.param(3, marks=pytest.mark.explore)])
def test_every_pair_of_kills_in_steps_of_two_sums(members: int) -> None:
    for first in World(members, 4, seed=0, spares=2, sums=2).run().trace:
        points = World(members, 4, seed=1, spares=2, kills=[first], sums=2).run().trace
        for second in points[points.index(first) :] if first in points else points:
            if second.rank != first.rank:
                assert_right(World(members, 4, seed=1, spares=2, kills=[first, second], sums=2).run())


def test_a_state_handed_out_between_two_sums_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers are kept waiting for a reason: with a state from within a step, their lanes would be others'."""
    cargo = World.cargo

    def careless(self: World, member: Courier, what: Payload) -> object:
        summed, member.worker.summed = member.worker.summed, 0
        try:
            return cargo(self, member, what)
        finally:
            member.worker.summed = summed

    monkeypatch.setattr(World, "cargo", careless)
    with pytest.raises((AssertionError, Divergence)):
        for kill in World(3, 4, seed=0, spares=1, sums=2).run().trace:
            assert_right(World(3, 4, seed=0, spares=1, kills=[kill], sums=2).run())


def test_only_the_lanes_of_the_dead_are_computed_again() -> None:
    for kill in World(4, ROUNDS, seed=0, lanes=8).run().trace:
        world = World(4, ROUNDS, seed=5, lanes=8, kills=[kill]).run()
        # Each lane once, and the dead member's two lanes of the round it died in once more.
        assert sum(m.worker.computed for m in world.members) <= 8 * ROUNDS + 2


def test_a_flipped_state_is_found_in_its_round_and_evicted() -> None:
    for rank in range(4):
        for number in range(ROUNDS):
            world = World(4, ROUNDS, seed=rank, flips={rank: number}).run()
            assert_right(world)
            assert world.members[rank].status == "evicted"
            assert [m.status for m in world.members].count("ended") == 3


def test_a_flipped_state_gets_no_second_voice_by_being_copied() -> None:
    """A member dies while the first one's state is flipped, and a spare gets that: then two states are wrong."""
    copied = 0
    for kill in [kill for kill in World(4, ROUNDS, seed=0, spares=1).run().trace if kill.rank == 3]:
        for number in range(ROUNDS):
            world = World(4, ROUNDS, seed=1, spares=1, kills=[kill], flips={0: number}).run()
            assert_right(world)
            assert [world.members[rank].status for rank in (0, 1, 2)] == ["evicted", "ended", "ended"]
            copied += world.members[4].status == "evicted"
    assert copied


@pytest.mark.parametrize(
    ("digests", "origins", "right"),
    [
        ({0: 5, 1: 6, 2: 6, 3: 5}, {3: 0}, 6),  # 3 copied the flipped state of 0
        ({0: 5, 1: 6, 2: 6, 3: 5, 4: 5}, {3: 0, 4: 0}, 6),  # and 4: most are wrong
        ({0: 6, 1: 5, 2: 5}, {1: 0, 2: 0}, 5),  # 0 was flipped when 1 and 2 had copied it
        ({0: 5, 1: 6, 2: 5}, {1: 0, 2: 0}, 5),  # 1 was flipped when it had copied
        ({0: 5, 3: 5, 1: 6}, {3: 0}, 5),  # either 1, or 0 before it was copied: the majority's
        ({0: 5, 1: 6, 2: 6, 3: 5}, {}, None),
        ({0: 5, 1: 6}, {1: 0}, None),
        ({0: 5, 1: 6, 2: 7, 3: 5}, {3: 0}, 5),  # more than one fault
    ],
)
def test_a_state_is_not_right_for_having_been_copied(
    digests: dict[int, int], origins: dict[int, int], right: int | None
) -> None:
    if right is None:
        with pytest.raises(Divergence):
            right_digest(digests, origins)
    else:
        assert right_digest(digests, origins) == right


@pytest.mark.parametrize(
    ("total", "verdict"),
    [
        (Total([1, 1], {0: 5, 1: 5}, 0), Verdict.COMMIT),
        (Total([0, 0], {0: 5, 1: 5}, 2), Verdict.LEAVE),
        (Total([0, 1], {0: 5, 1: 5}, 1, noted=1), Verdict.COMMIT),
        (Total([1, 1], {0: 5, 1: 5, 2: 6}, 0), Verdict.EVICT),
        (Total([1, 2], {0: 5, 1: 5}, 0), Divergence),
        (Total([1, 0], {0: 5, 1: 5}, 0), Divergence),
        (Total([1, 1], {0: 5, 1: 6}, 0), Divergence),
        (Total([1, 1], {0: 5, 1: 5}, 1), Divergence),
        (Total([1, 1], {0: 6, 1: 5, 2: 5}, 0), Evicted),
    ],
)
def test_totals_are_checked(total: Total, verdict: Verdict | type[Exception]) -> None:
    if isinstance(verdict, Verdict):
        assert check(total, 0) is verdict
    else:
        with pytest.raises(verdict):
            check(total, 0)


def test_lanes_of_another_round_are_nobody_s() -> None:
    memory = MemberState(0, done=3)
    memory.assign([2, 1])
    assert memory.lanes == (1, 2)
    memory.done += 1  # the courier is killed here, before it assigns
    assert memory.lanes == ()


@given(st.integers(1, 50), st.integers(1, 50))
def test_division_covers_every_lane_once_and_evenly(lanes: int, members: int) -> None:
    parts = [divide(lanes, members, which) for which in range(members)]
    assert sorted(lane for part in parts for lane in part) == list(range(lanes))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 30), st.integers(1, 8), st.randoms())
def test_handed_over_lanes_complete_the_cover(lanes: int, members: int, dice: random.Random) -> None:
    held = [divide(lanes, members, which) if dice.random() < 0.6 else () for which in range(members)]
    more = hand_over(lanes, held)
    assert sorted(lane for own, new in zip(held, more, strict=True) for lane in (*own, *new)) == list(range(lanes))


@pytest.mark.parametrize(
    ("active", "spare", "agreed", "hosts", "expected"),
    [
        ({3}, set(), {0, 1, 2, 3}, [[0, 1, 2, 3]], True),  # on one host, who is gone is dead
        ({3}, set(), {0, 1, 2, 3}, [], True),
        ({0, 1}, set(), {0, 1, 2, 3}, [[0, 1], [2, 3]], True),  # of equal halves, the one with the first goes on
        ({2, 3}, set(), {0, 1, 2, 3}, [[0, 1], [2, 3]], False),
        ({1, 3}, set(), {0, 1, 2, 3}, [[0, 1], [2, 3]], True),  # somebody is left on every host
        ({1, 2}, set(), {0, 1, 2}, [[0], [1, 2]], True),
        ({0}, set(), {0, 1, 2}, [[0], [1, 2]], False),
        ({2}, set(), {2, 3}, [[0, 1], [2, 3]], True),  # the others have been left out before
        (set(), {4}, {0, 1}, [[0, 1, 4]], True),
        (set(), {4}, {0, 1}, [[0, 1], [4]], False),
    ],
)
def test_of_a_broken_network_one_half_goes_on(
    active: set[int], spare: set[int], agreed: set[int], hosts: list[list[int]], expected: bool
) -> None:
    assert may_go_on(active, active | spare, [agreed], hosts) is expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.sets(st.integers(0, 3)))
def test_two_halves_never_both_go_on(places: list[int], side: set[int]) -> None:
    hosts = [[rank for rank, place in enumerate(places) if place == host] for host in range(4)]
    half = {rank for rank, place in enumerate(places) if place in side}
    rest = set(range(len(places))) - half
    assert sum(may_go_on(part, part, [range(len(places))], hosts) for part in (half, rest) if part) == 1


@given(st.data(), st.lists(st.integers(0, 3), min_size=1, max_size=8), st.sets(st.integers(0, 3)))
def test_two_halves_never_both_go_on_while_the_membership_changes(
    data: st.DataObject, places: list[int], side: set[int]
) -> None:
    """The halves know some of the memberships, one of them both; who is active is in the last that its half knows."""
    hosts = [[rank for rank, place in enumerate(places) if place == host] for host in range(4)]
    ranks = set(range(len(places)))
    proposals = data.draw(st.lists(st.sets(st.sampled_from(sorted(ranks)), min_size=1), min_size=1, max_size=4))
    known = data.draw(st.integers(0, len(proposals) - 1))
    alive = data.draw(st.sets(st.sampled_from(sorted(ranks))))
    half = {rank for rank in alive if places[rank] in side}
    both = []
    for left in (half, alive - half):
        first, last = data.draw(st.integers(0, known)), data.draw(st.integers(known, len(proposals) - 1))
        active = {rank for rank in left & proposals[last] if data.draw(st.booleans())}
        both.append(bool(active) and may_go_on(active, left, proposals[first : last + 1], hosts))
    assert not all(both)


def test_members_of_a_group_count_the_same_shrinks() -> None:
    """A member may have repeated a shrink that the others saw succeed: all count the most that any one counted."""
    member = run_member(MemberState(rank=0), lanes=4, wanted=2, world=3, fresh=True)
    assert member.send(None) == Begin()
    gather = member.send(0)
    assert isinstance(gather, Gather) and (gather.record.world, gather.record.shrink) == (3, 0)
    other = replace(gather.record, rank=1, shrink=2)
    operation = member.send([gather.record, other])
    while not isinstance(operation, Enlist):
        operation = member.send(None)
    assert (operation.world, operation.shrink) == (3, 2)
