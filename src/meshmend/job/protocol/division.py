"""Who computes which lanes."""

from __future__ import annotations

from collections.abc import Sequence


def divide(lanes: int, members: int, which: int) -> tuple[int, ...]:
    """The lanes of one member when all are divided evenly; neighbouring lanes stay together."""
    return tuple(range(which * lanes // members, (which + 1) * lanes // members))


def claims(held: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Who keeps which lanes: the first of two holders does (its courier was lost for a while, so another took over)."""
    taken: set[int] = set()
    kept = []
    for own in held:
        kept.append(tuple(lane for lane in own if lane not in taken))
        taken.update(own)
    return kept


def hand_over(lanes: int, held: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The lanes that no member holds, dealt one by one to the member with the fewest (the first of those)."""
    load = [len(own) for own in held]
    more: list[list[int]] = [[] for _ in held]
    for lane in sorted(set(range(lanes)) - {lane for own in held for lane in own}):
        which = min(range(len(held)), key=lambda i: (load[i], i))
        more[which].append(lane)
        load[which] += 1
    return [tuple(own) for own in more]
