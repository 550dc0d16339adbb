"""How the members of a group reach each other over chips of other groups: routes of links with relays between.

A route leads straight on from a member to the next member of its group in that direction. Routes of one group share no
relay, so that in each of its trees a relay has one child and one parent: it forwards, and has nothing to add. Where a
hole leaves a group in pieces, more routes bend around it, along shortest ways over relays that the group does not use
yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshmend.errors import PlanError
from meshmend.mesh import Mesh
from meshmend.mesh.collectives.groups import Labels
from meshmend.mesh.grid import STEP

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Routes:
    """The graph of one group: members are its vertices, routes its edges. Arrays are over [member, number of route]."""

    members: npt.NDArray[np.int32]
    near: Ints
    """The member at the other end (its place in `members`), or -1."""
    back: Ints
    """The number of the same route at its other end."""
    path: npt.NDArray[np.int32]
    """[member, route, step]: the directed links from the member to the other end, -1 behind the last."""


def routes(mesh: Mesh, group: Labels, which: int) -> Routes:
    """The routes of one group: straight ones, and as many bent ones as keep it in one piece."""
    members = np.flatnonzero(group == which).astype(np.int32)
    place = np.full(mesh.size, -1, np.int64)
    place[members] = np.arange(len(members))
    taken = np.zeros(mesh.size, bool)
    found: list[list[tuple[int, int, list[int]]]] = [[] for _ in members]
    for way in range(len(mesh.ways)):
        if STEP[way][1] < 0:
            continue  # every route is found from one of its ends, and added at both
        crossed = taken.copy()
        for here, there, links in _straight(mesh, place, members, way):
            relays = [mesh.link_source(link)[0] for link in links[1:]]
            if there != here and not crossed[relays].any():
                taken[relays] = True
                _join(mesh, found, here, there, links)
    _mend(mesh, found, place, members, taken, which)
    return _as_arrays(members, found)


def _straight(mesh: Mesh, place: Ints, members: npt.NDArray[np.int32], way: int) -> list[tuple[int, int, list[int]]]:
    """(member, member, links): from each member on until the next, where every link between them lives."""
    out = []
    for here, chip in enumerate(members.tolist()):
        links = [mesh.link_number(chip, way)]
        there = int(mesh.neighbour[chip, way])
        while there >= 0 and place[there] < 0:
            links.append(mesh.link_number(there, way))
            there = int(mesh.neighbour[there, way])
        if there >= 0:
            out.append((here, int(place[there]), links))
    return out


def _join(mesh: Mesh, found: list[list[tuple[int, int, list[int]]]], here: int, there: int, links: list[int]) -> None:
    """Add a route at both its ends."""
    homeward = [int(mesh.reverse[link]) for link in reversed(links)]
    found[here].append((there, len(found[there]), links))
    found[there].append((here, len(found[here]) - 1, homeward))


def _mend(
    mesh: Mesh,
    found: list[list[tuple[int, int, list[int]]]],
    place: Ints,
    members: npt.NDArray[np.int32],
    taken: npt.NDArray[np.bool_],
    which: int,
) -> None:
    """Bend routes around the hole until the group is in one piece."""
    while True:
        inside = np.zeros(len(members), bool)
        waiting = deque([0])
        inside[0] = True
        while waiting:
            for there, _, _ in found[waiting.popleft()]:
                if not inside[there]:
                    inside[there] = True
                    waiting.append(there)
        if inside.all():
            return
        links = _bent(mesh, place, members[inside], inside, taken)
        if not links:
            raise PlanError(
                f"group {which} on {mesh} is disconnected: chip {mesh.name(int(members[~inside][0]))} has no route to "
                "its peers over relays of its own; give a tile of another shape"
            )
        chips = [int(mesh.link_source(link)[0]) for link in links]
        taken[chips[1:]] = True
        last = int(mesh.neighbour[mesh.link_source(links[-1])])
        _join(mesh, found, int(place[chips[0]]), int(place[last]), links)


def _bent(
    mesh: Mesh,
    place: Ints,
    begin: npt.NDArray[np.int32],
    inside: npt.NDArray[np.bool_],
    taken: npt.NDArray[np.bool_],
) -> list[int]:
    """The shortest way over free relays from these members to one outside; empty if there is none."""
    came = np.full(mesh.size, -1, np.int64)
    came[begin] = -2
    waiting = deque(begin.tolist())
    while waiting:
        here = waiting.popleft()
        for way in range(len(mesh.ways)):
            there = int(mesh.neighbour[here, way])
            if there < 0 or came[there] != -1 or taken[there] or (place[there] >= 0 and inside[place[there]]):
                continue
            came[there] = mesh.link_number(here, way)
            if place[there] >= 0:
                links = [int(came[there])]
                while came[source := int(mesh.link_source(links[-1])[0])] != -2:
                    links.append(int(came[source]))
                return links[::-1]
            waiting.append(there)
    return []


def _as_arrays(members: npt.NDArray[np.int32], found: list[list[tuple[int, int, list[int]]]]) -> Routes:
    ways = max(map(len, found))
    steps = max(len(links) for routes in found for _, _, links in routes)
    near, back = (np.full((len(members), ways), fill, np.int64) for fill in (-1, 0))
    path = np.full((len(members), ways, steps), -1, np.int32)
    for here, of_member in enumerate(found):
        for number, (there, home, links) in enumerate(of_member):
            near[here, number], back[here, number] = there, home
            path[here, number, : len(links)] = links
    return Routes(members, near, back, path)
