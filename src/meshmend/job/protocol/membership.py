"""Which side of a broken network may continue."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def may_go_on(active: set[int], left: set[int], agreed: Collection[int], hosts: Sequence[Collection[int]]) -> bool:
    """Whether the active ones among those left may continue: they are most of the members not known to be dead.

    Of two halves of a broken network, at most one may. A host fails as a whole or not at all, so a member missing from
    a host where others are left is dead; one of a host where nobody is left may be alive on the other side.
    """
    seen = {rank for host in hosts if left & set(host) for rank in host}
    unsure = set(agreed) - left - seen
    return not hosts or not unsure or has_majority(active, active | unsure)


def has_majority(left: set[int], members: set[int]) -> bool:
    """Whether these are most of the members; of two equal halves, the one with the first member is."""
    return 2 * len(left) > len(members) or (2 * len(left) == len(members) and min(members, default=0) in left)
