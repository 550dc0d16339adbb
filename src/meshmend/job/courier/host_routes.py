"""PURE: which member sends what to which, where slices go between hosts, so that nothing crosses a network twice.

Members of a host read each other's memory. So the parts of a host are added up there, and cross the network as one sum
per slice, to the member that adds up all of them (its *adder*); the total goes on to one member of each other host that
needs it, and the same holds for new weights:

    host a   part 0 ─┐                         host b   part 2 ─┐
             part 1 ─┴─ sum of a slice ───────────────► part 3 ─┴─ total ──┐ (adder: member 2)
             total (member 1) ◄────────────────────────────────────────────┘
             total (member 0) ◄── read from member 1

With H hosts, a slice's sums cross networks H - 1 times, and its total or its new weights reach each other host once:
what the best all-reduce needs, if buddies are on other hosts than owners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from meshmend.job.reduction.base import slices

Span = tuple[int, int, int]
"""(slice, begin, end): some numbers of a slice, by their places in all of them."""


@dataclass(frozen=True)
class Routes:
    """What each member sends to which others, and what it reads from members of its own host afterwards."""

    far: dict[tuple[int, int], list[Span]] = field(default_factory=dict)
    """By sender and receiver: positions."""
    near: dict[int, dict[int, int]] = field(default_factory=dict)
    """By reader: for each slice, whose memory has it then."""

    def send(self, source: int, target: int, span: Span) -> None:
        """Have some numbers sent."""
        if span[1] < span[2]:
            self.far.setdefault((source, target), []).append(span)

    def turns(self, most: int) -> int:
        """How many exchanges it takes with at most so many numbers from one member to another in each."""
        sizes = (sum(end - begin for _, begin, end in spans) for spans in self.far.values())
        return -(-max(sizes, default=0) // most)

    def between(self, source: int, target: int, most: int) -> Iterator[list[Span]]:
        """What one member sends to another, in each exchange."""
        turn: list[Span] = []
        room = most
        for number, start, end in self.far.get((source, target), []):
            begin = start
            while begin < end:
                stop = min(end, begin + room)
                turn.append((number, begin, stop))
                room, begin = room - (stop - begin), stop
                if not room:
                    yield turn
                    turn, room = [], most
        yield turn
        while True:
            yield []


@dataclass(frozen=True)
class Hosts:
    """The host of each member, by position."""

    of: tuple[int, ...]

    @cached_property
    def members(self) -> dict[int, tuple[int, ...]]:
        """The positions on each host."""
        return {host: tuple(p for p, one in enumerate(self.of) if one == host) for host in dict.fromkeys(self.of)}

    def beside(self, position: int) -> tuple[int, ...]:
        """All members of a member's host, itself included."""
        return self.members[self.of[position]]


def sums(bounds: Sequence[int], adders: Sequence[int], hosts: Hosts) -> Routes:
    """Every host's sum of a slice goes to its adder; the members of a host share the work, a piece of each slice."""
    found = Routes()
    for number, adder in enumerate(adders):
        for host, members in hosts.members.items():
            if host != hosts.of[adder]:
                pieces = slices(bounds[number], bounds[number + 1], len(members))
                for member, piece in zip(members, pieces, strict=True):
                    found.send(member, adder, (number, piece.start, piece.stop))
    return found


def spread(
    bounds: Sequence[int], having: Sequence[Sequence[int]], wanting: Sequence[Collection[int]], hosts: Hosts
) -> Routes:
    """What some members have of each slice goes to those that want it: to one of a host, where the others read it.

    The first that has a slice sends it. Nobody can send one that nobody has.
    """
    found = Routes()
    for number, (have, want) in enumerate(zip(having, wanting, strict=True)):
        for host, members in hosts.members.items() if have else ():
            readers = [position for position in members if position in want]
            here = [position for position in have if hosts.of[position] == host]
            if readers and not here:
                here = [readers.pop(number % len(readers))]  # not always the same one
                found.send(have[0], here[0], (number, bounds[number], bounds[number + 1]))
            for reader in readers:
                found.near.setdefault(reader, {})[number] = here[0]
    return found
