"""Who holds what after each sum: workers that die, are replaced and join, at random, and what none may get wrong."""

from __future__ import annotations

import random

import pytest

from meshmend.job.embeddings.placement import Placement
from meshmend.job.protocol import Lost


class World:
    """Workers that really have slices: each is a set, and dies with all that it has."""

    def __init__(self, seed: int, workers: int, buddies: int) -> None:
        self.random = random.Random(seed)
        self.placement = Placement(24, buddies, most=3).updated(range(workers))
        self.has = {rank: set(self.placement.held_by(rank)) for rank in range(workers)}
        self.new: set[int] = set()
        self.workers, self.buddies = workers, buddies

    def sum(self, deaths: int, births: int) -> None:
        """One sum: some die before they copy, some after, and the ranks of dead ones may be taken by others."""
        targets = {rank: self.placement.fills_to(rank) for rank in self.has if rank not in self.new}
        victims = set(self.random.sample(sorted(self.has), min(deaths, len(self.has) - 1)))
        for rank in self.has.keys() - victims:
            for fill in targets.get(rank, ()):
                alive = [one for one in self.placement.holders[fill.slice] if fill.slice in self.has.get(one, ())]  # type: ignore[index]
                assert alive, "who is to copy a slice finds somebody that has it, if anybody does"
                self.has[rank].add(fill.slice)
        for rank in victims:
            del self.has[rank]
            self.new.discard(rank)
        dead = sorted(set(range(self.workers)) - self.has.keys())
        for rank in self.random.sample(dead, min(births, len(dead))):
            self.has[rank] = set()
            self.new.add(rank)
        self.placement = self.placement.after(self.has.keys(), self.new)
        self.new = set()
        for rank, slices in self.has.items():
            slices &= self.placement.held_by(rank)

    def check(self) -> None:
        for number, ranks in enumerate(self.placement.holders or ()):
            assert ranks and len(set(ranks)) == len(ranks)
            assert all(number in self.has[rank] for rank in ranks), "who counts as a holder has the slice"


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize(("workers", "buddies"), [(2, 1), (3, 1), (4, 1), (5, 2)])
def test_who_counts_as_a_holder_has_the_slice_whoever_dies_and_joins(seed: int, workers: int, buddies: int) -> None:
    world = World(seed, workers, buddies)
    for _ in range(30):
        full = all(len(ranks) > min(buddies, len(world.has) - 1) for ranks in world.placement.holders or ())
        deaths = world.random.choice([0, 0, 1, buddies]) if full and not world.placement.fills else 0
        world.sum(deaths, world.random.choice([0, 0, 1, 2]))
        world.check()
    for _ in range(24):  # and then all copies are there again, and none too many
        world.sum(0, 0)
    wanted = min(buddies + 1, len(world.has))
    assert all(len(ranks) == wanted for ranks in world.placement.holders or ()) and not world.placement.fills


def test_slices_with_one_copy_are_counted_until_they_are_filled() -> None:
    begun = Placement(8, 1)
    before = begun.updated([0, 1, 2])
    assert begun.single == before.single == 0
    after = before.after([0, 1], joined=[])
    assert after.single == len(before.held_by(2)) == len(after.fills) > 0
    assert after.after([0, 1], joined=[]).single == 0
    assert Placement(8, 0).updated([0, 1, 2]).single == 0, "none should have more"


def test_a_replacement_of_the_same_rank_has_nothing() -> None:
    """A protocol that forgot who joined would count on rows that died with the one before."""
    before = Placement(8, 1).updated([0, 1, 2])
    after = before.after([0, 1, 2], joined=[2])
    assert not after.held_by(2) and {fill.slice for fill in after.fills_to(2)} == before.held_by(2)
    assert after.known(after.facts()) == after


def test_a_slice_is_lost_when_all_its_holders_are() -> None:
    placement = Placement(8, 1).updated([0, 1, 2, 3])
    assert placement.holders is not None
    with pytest.raises(Lost, match="slice"):
        placement.after(set(range(4)) - set(placement.holders[0]), ())


def test_before_the_first_update_a_death_loses_nothing() -> None:
    assert Placement(8, 1).after([2], [2]).updated([2]).held_by(2) == frozenset(range(8))


@pytest.mark.parametrize("workers", [(2, 2), (3, 3), (2, 2, 2), (4, 2, 2)])
def test_no_slice_is_lost_with_a_host(workers: tuple[int, ...]) -> None:
    hosts = {rank: str(host) for rank, host in enumerate(h for h, count in enumerate(workers) for _ in range(count))}
    placement = Placement(256, 1).updated(hosts, hosts)
    for host in set(hosts.values()):
        left = [rank for rank, its in hosts.items() if its != host]
        after = placement.after(left, [], hosts)
        assert all(after.holders or ()), "a copy was on another host"
    shares = [len(placement.held_by(rank)) / 256 for rank in hosts]
    assert max(shares) <= 4 / 3 * 2 / len(hosts) + 1 / 256


def test_a_host_with_few_workers_does_not_get_everything() -> None:
    hosts = {0: "a", 1: "a", 2: "a", 3: "b"}
    placement = Placement(256, 1).updated(hosts, hosts)
    assert 0.6 < len(placement.held_by(3)) / 256 <= 2 / 3 + 1 / 256
    assert all(len({*ranks}) == 2 for ranks in placement.holders or ())
