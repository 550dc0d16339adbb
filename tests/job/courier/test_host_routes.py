"""Slices between hosts, without MPI: whoever is where, all get what they need, and nothing crosses a network twice."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from meshmend.job.courier.host_routes import Hosts, Routes, spread, sums

Ints = npt.NDArray[np.int64]


@st.composite
def groups(draw: st.DrawFn) -> tuple[Hosts, list[int], list[list[int]]]:
    """Hosts, where slices begin, and the members that take each slice, the adder first."""
    hosts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=7))
    bounds = [*accumulate(draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)), initial=0)]
    everybody = st.lists(st.sampled_from(range(len(hosts))), min_size=1, unique=True)
    takers = [draw(everybody) for _ in range(len(bounds) - 1)]
    return Hosts(tuple(hosts)), bounds, takers


def send(routes: Routes, read: list[Ints], write: list[Ints], most: int, *, add: bool = False) -> None:
    """Run all turns, as the members would with MPI."""
    members = range(len(read))
    pairs = {(a, b): routes.between(a, b, most) for a in members for b in members}
    for _ in range(routes.turns(most)):
        for (source, target), turns in pairs.items():
            spans = next(turns)
            assert sum(end - begin for _, begin, end in spans) <= most
            for _, begin, end in spans:
                assert begin < end
                values = read[source][begin:end]
                write[target][begin:end] = write[target][begin:end] + values if add else values


def crossings(routes: Routes, hosts: Hosts) -> Counter[tuple[int, int, int]]:
    """How often each number goes from one host to another."""
    found: Counter[tuple[int, int, int]] = Counter()
    for (source, target), spans in routes.far.items():
        assert hosts.of[source] != hosts.of[target]
        for _, begin, end in spans:
            found.update((place, hosts.of[source], hosts.of[target]) for place in range(begin, end))
    return found


@given(groups(), st.integers(1, 20))
def test_all_takers_get_the_total_and_nothing_crosses_twice(group: tuple, most: int) -> None:
    hosts, bounds, takers = group
    members, size = len(hosts.of), bounds[-1]
    parts = [np.random.default_rng(one).integers(0, 100, size) for one in range(members)]
    of_host = [sum((parts[one] for one in hosts.beside(place)), np.zeros(size, np.int64)) for place in range(members)]
    adders = [ranks[0] for ranks in takers]
    totals = [np.full(size, -1, np.int64) for _ in range(members)]
    for number, adder in enumerate(adders):
        here = slice(bounds[number], bounds[number + 1])
        totals[adder][here] = of_host[adder][here]
    up = sums(bounds, adders, hosts)
    send(up, of_host, totals, most, add=True)
    down = spread(bounds, [ranks[:1] for ranks in takers], [ranks[1:] for ranks in takers], hosts)
    send(down, totals, totals, most)
    for reader, sources in down.near.items():
        for number, source in sources.items():
            assert hosts.of[reader] == hosts.of[source]
            here = slice(bounds[number], bounds[number + 1])
            totals[reader][here] = totals[source][here]
    for number, ranks in enumerate(takers):
        here = slice(bounds[number], bounds[number + 1])
        for one in ranks:
            assert totals[one][here].tolist() == sum(parts)[here].tolist()
    assert all(count == 1 for routes in (up, down) for count in crossings(routes, hosts).values())


@given(groups(), st.data())
def test_whoever_wants_weights_gets_them_if_somebody_has_them(group: tuple, data: st.DataObject) -> None:
    hosts, bounds, holders = group
    if data.draw(st.booleans()):
        holders[0] = []
    takes = data.draw(st.lists(st.sampled_from(range(len(hosts.of))), unique=True))
    wanting = [[one for one in takes if one not in have] for have in holders]
    routes = spread(bounds, holders, wanting, hosts)
    has = {(number, one) for number, have in enumerate(holders) for one in have}
    has |= {(number, target) for (_, target), spans in routes.far.items() for number, _, _ in spans}
    for number, want in enumerate(wanting):
        for one in want if holders[number] and bounds[number] < bounds[number + 1] else ():
            near = routes.near.get(one, {}).get(number)
            assert (number, one) in has if near is None else (number, near) in has and hosts.of[near] == hosts.of[one]
    assert all(count == 1 for count in crossings(routes, hosts).values())


def test_bytes_between_hosts_are_those_of_the_best_all_reduce() -> None:
    """Four hosts, one member each: 2 (H - 1) times the message, buddies included; weights go to two hosts of four."""
    hosts, bounds = Hosts((0, 1, 2, 3)), [0, 10, 20]
    takers = [[0, 2], [3, 1]]
    up = sums(bounds, [0, 3], hosts)
    down = spread(bounds, [[0], [3]], [[2], [1]], hosts)
    out = spread(bounds, takers, [[1, 3], [0, 2]], hosts)
    assert [crossings(one, hosts).total() for one in (up, down, out)] == [3 * 20, 20, 2 * 20]
