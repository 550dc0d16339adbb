"""Sharded rounds under every single kill, every pair of kills with every outcome, and many random schedules."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import pytest

from meshmend.job.protocol import Divergence, Evicted
from meshmend.job.sharding.copies import check_copies, wrong_copies
from tests.simulators.mpi import Kill
from tests.simulators.recorded import Unrecorded
from tests.simulators.sharded import ShardedWorld, explore, undisturbed

ROUNDS = 5
FILLED = 3
"""Rounds after which all slices have all their copies again, where members die and are filled with two per round."""


def assert_right(world: ShardedWorld) -> None:
    """Survivors have the weights and slices of an undisturbed run, each slice with as many copies as before."""
    assert all(m.status in ("ended", "dead", "evicted", "stray", "lost") for m in world.members)
    ended = [m for m in world.members if m.status == "ended" and m.memory.active]
    right = undisturbed(world.rounds, world.sharding.slices, world.lanes, world.sharding.measures)
    if world.loose and ended:
        right.weights = ended[0].worker.weights
        right.moments = {number: m.worker.moments[number] for m in ended for number in m.memory.held}
    for member in ended:
        assert member.memory.done == world.rounds - 1
        assert member.worker.weights == right.weights
        for number in member.memory.held:
            assert member.worker.moments[number] == right.moments[number]
            assert member.worker.version[number] == world.rounds - 1
    if ended:
        world.disk.check(world.rounds - 1)
    if world.simple:
        # But in the first round: who has updated nothing yet can begin anew when those that have are gone.
        lost = [m for m in world.members if m.status == "lost" and m.memory.met[0] > 0]
        assert not (ended and lost), "some continue, others cannot"
    if ended and world.simple and world.rounds - 1 - world.last >= FILLED:
        copies = [sum(number in m.memory.held for m in ended) for number in range(world.sharding.slices)]
        # More where those that are last to leave have found the others gone, and have begun to fill each other.
        assert min(copies) >= min(world.sharding.buddies + 1, len(ended))


def orders(members: int) -> Iterator[Sequence[int]]:
    """Who is ahead of whom: any order of few; of many, each one first and last."""
    if members <= 3:
        yield from permutations(range(members))
    else:
        for first in range(members):
            yield [*range(first, members), *range(first)]


@cache
def points(members: int, buddies: int, done: int, kills: tuple[Kill, ...] = (), measures: int = 0) -> list[Kill]:
    """Where members can die up to the round after `done`."""
    world = ShardedWorld(members, ROUNDS, buddies=buddies, kills=kills, measures=measures).run()
    return [kill for kill, when in world.trace if when <= done]


def later(members: int, buddies: int, first: Kill) -> list[Kill]:
    """Where another can die after the first, until hand-over is done."""
    found = points(members, buddies, 2, (first,))
    return [kill for kill in found[found.index(first) :] if kill.rank != first.rank]


@pytest.mark.parametrize("measures", [0, 2])
@pytest.mark.parametrize("buddies", [0, 1, 2])
@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_undisturbed(members: int, buddies: int, measures: int) -> None:
    world = ShardedWorld(members, ROUNDS, buddies=buddies, measures=measures).run()
    assert_right(world)
    assert [m.status for m in world.members] == ["ended"] * members
    assert sum(m.worker.computed for m in world.members) == ROUNDS * world.lanes
    # Begin, Gather, Cast, Enlist; six operations per round, of which three wait for all; two more to leave.
    assert all(m.operations == 4 + (6 + measures) * ROUNDS + 2 for m in world.members)


@pytest.mark.parametrize(("members", "buddies", "measures"), [(2, 1, 0), (3, 1, 0), (3, 1, 1)])
def test_every_single_kill_with_every_outcome(members: int, buddies: int, measures: int) -> None:
    how = {"buddies": buddies, "measures": measures}
    for kill in points(members, buddies, 0, (), measures):
        for world in explore(lambda dice, kill=kill: ShardedWorld(members, ROUNDS, kills=[kill], dice=dice, **how)):
            assert_right(world)
            assert sum(m.status == "ended" for m in world.members) >= members - 1


@pytest.mark.parametrize("buddies", [1, 2])
@pytest.mark.parametrize("members", [4, 5])
def test_single_kills_with_some_outcomes(members: int, buddies: int) -> None:
    for seed, kill in enumerate(points(members, buddies, 0)[:: 2 if members == 4 else 3]):
        world = ShardedWorld(members, ROUNDS, buddies=buddies, kills=[kill], dice=random.Random(seed)).run()
        assert_right(world)
        assert sum(m.status == "ended" for m in world.members) >= members - 1


@pytest.mark.parametrize(("members", "buddies"), [(3, 1), (4, 1), (4, 2)])
def test_pairs_of_kills_with_some_outcomes(members: int, buddies: int) -> None:
    lost = 0
    for seed in range(30):
        dice = random.Random(seed)
        first = dice.choice(points(members, buddies, 0))
        second = dice.choice(later(members, buddies, first))
        world = ShardedWorld(members, ROUNDS, buddies=buddies, kills=[first, second], dice=dice).run()
        assert_right(world)
        lost += any(m.status == "lost" for m in world.members)
    assert lost if buddies == 1 else not lost, "two copies are lost with two members, three are not"


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("measures", [0, 2])
@pytest.mark.parametrize("buddies", [1, 2])
@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_all_single_kills(members: int, buddies: int, measures: int) -> None:
    """With every outcome, and whoever is ahead."""
    for kill in points(members, buddies, 0, (), measures):
        for order in orders(members):
            for world in explore(
                lambda dice, kill=kill, order=order: ShardedWorld(
                    members, ROUNDS, buddies=buddies, measures=measures, kills=[kill], dice=dice, order=order
                )
            ):
                assert_right(world)
                assert sum(m.status == "ended" for m in world.members) >= members - 1


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("buddies", [1, 2])
@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_all_pairs_of_kills(members: int, buddies: int, part: int) -> None:
    """With 2 and 3 members every outcome of each, with more the outcomes and the order are drawn."""
    for first in points(members, buddies, 0)[part::4]:
        for number, second in enumerate(later(members, buddies, first)):
            kills = [first, second]
            if members <= 3:
                for world in explore(
                    lambda dice, kills=kills: ShardedWorld(members, ROUNDS, buddies=buddies, kills=kills, dice=dice)
                ):
                    assert_right(world)
            else:
                assert_right(
                    ShardedWorld(members, ROUNDS, buddies=buddies, kills=kills, dice=random.Random(number)).run()
                )


def test_every_step_of_a_checkpoint_is_recorded_before_it_is_complete() -> None:
    """Every round is saved by everybody; a worker that recorded it a round later would be found out."""
    world = ShardedWorld(3, ROUNDS).run()
    assert world.disk.complete == set(world.disk.lines) == set(range(ROUNDS))
    with pytest.raises(Unrecorded, match="round 0 is in a checkpoint"):
        ShardedWorld(3, ROUNDS, early=False).run()


def test_after_a_kill_what_is_left_can_be_resumed() -> None:
    """A round that some have saved before they died is completed by the others, or there is no checkpoint of it."""
    kept = set()
    for seed, kill in enumerate(points(4, 1, 1)[::3]):
        world = ShardedWorld(4, ROUNDS, kills=[kill], dice=random.Random(seed)).run()
        kept.add(len(world.disk.complete))
    assert max(kept) == ROUNDS > min(kept)


def random_world(seed: int, **changed: Any) -> ShardedWorld:
    """Any number of members, spares, deaths of workers and of couriers, and worlds one after another."""
    dice = random.Random(seed)
    members, spares, rounds = dice.randint(1, 6), dice.choice([0, 0, 1, 2]), dice.randint(1, 7)
    everybody = members + spares

    def kills(most: int) -> list[Kill]:
        return [Kill(dice.randrange(everybody), dice.randint(1, 60), dice.random() < 0.5) for _ in range(most)]

    reforms = [dice.randint(1, 300) for _ in range(dice.choice([0, 0, 0, 1, 2, 3]))]
    return ShardedWorld(
        members, rounds, slices=dice.randint(1, 9), buddies=dice.randint(0, 3), fills=dice.choice([1, 2, 3, 9]),
        lanes=dice.randint(members, 9), spares=spares, measures=max(0, seed % 4 - 1),
        kills=kills(dice.choice([0, 1, 2, 3, 6])),
        strays=kills(dice.choice([0, 1, 2]) if reforms else 0), reforms=reforms, dice=dice, loose=dice.random() < 0.5,
        **changed,
    )  # fmt: skip


def check_random(seeds: Sequence[int]) -> None:
    for seed in seeds:
        try:
            assert_right(random_world(seed).run())
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__} {error}") from error


def test_random_schedules() -> None:
    check_random(range(150))


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(8))
def test_many_random_schedules(block: int) -> None:
    check_random(range(block * 4000, (block + 1) * 4000))


def test_in_the_first_round_those_that_have_updated_nothing_begin_anew() -> None:
    """Worker 1 has met the others and holds slice 2; the holders of slices 0 and 1 die, and worker 3 has not met."""
    kills = [Kill(0, 7, entered=True), Kill(2, 9, entered=False)]
    world = ShardedWorld(4, ROUNDS, kills=kills, dice=random.Random(4)).run()
    assert_right(world)
    assert [m.status for m in world.members] == ["dead", "lost", "dead", "ended"]


def test_a_spare_takes_weights_from_one_and_slices_from_several() -> None:
    kill = Kill(1, 14, entered=True)
    world = ShardedWorld(3, 8, slices=9, fills=3, spares=1, kills=[kill]).run()
    assert_right(world)
    newcomer = world.members[3]
    assert newcomer.memory.active and newcomer.worker.computed and newcomer.memory.held


def test_a_wrong_weight_is_found_in_its_round_and_its_worker_evicted() -> None:
    for rank in range(4):
        for number in range(1, ROUNDS - 1):
            world = ShardedWorld(4, ROUNDS, flips={rank: ("weights", number)}).run()
            assert_right(world)
            assert [m.status for m in world.members].count("ended") == 3
            assert world.members[rank].status == "evicted"


@pytest.mark.parametrize("measures", [0, 1])
@pytest.mark.parametrize("buddies", [1, 2])
def test_a_copy_damaged_at_rest_is_found_by_its_holder(buddies: int, measures: int) -> None:
    """Before it is updated, and before others hear of a norm that depends on it."""
    for rank in range(4):
        world = ShardedWorld(4, ROUNDS, buddies=buddies, measures=measures, flips={rank: ("rest", 1)}).run()
        assert_right(world)
        assert [m.status for m in world.members].count("evicted") == bool(world.members[rank].status == "evicted")
        assert world.members[rank].status == "evicted"


def test_two_buddies_outvote_a_wrong_update_and_one_cannot() -> None:
    for rank in range(4):
        world = ShardedWorld(4, ROUNDS, buddies=2, flips={rank: ("update", 1)}).run()
        assert_right(world)
        assert world.members[rank].status == "evicted"
        with pytest.raises(Divergence):
            ShardedWorld(4, ROUNDS, buddies=1, flips={rank: ("update", 1)}).run()


@pytest.mark.parametrize(
    ("digests", "wrong"),
    [
        ({0: 5}, set()),
        ({0: 5, 3: 5}, set()),
        ({0: 5, 3: 5, 4: 6}, {4}),
        ({0: 5, 3: 6, 4: 6, 7: 6}, {0}),
        ({0: 5, 3: 6}, None),
        ({0: 5, 3: 5, 4: 6, 7: 6}, None),
        ({0: 5, 3: 6, 4: 7}, None),
    ],
)
def test_copies_are_compared(digests: dict[int, int], wrong: set[int] | None) -> None:
    if wrong is None:
        with pytest.raises(Divergence):
            wrong_copies(2, digests)
        return
    assert wrong_copies(2, digests) == wrong
    for rank in digests:
        if rank in wrong:
            with pytest.raises(Evicted):
                check_copies({2: digests}, rank)
        else:
            assert check_copies({2: digests}, rank) == wrong
