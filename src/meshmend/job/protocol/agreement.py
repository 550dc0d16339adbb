"""Decisions that all members make alike from the same facts, without another message.

Whether a round's total counts, whose state is right if they differ, which side of a partitioned network may continue,
and which member computes which lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from meshmend.job.protocol.records import Divergence, Evicted, Total
from meshmend.job.protocol.rounds import RoundKind

CAUSES = (
    ": a state that was changed outside of job.sum and job.commit, a branch on the rank, or random numbers without a "
    "common seed; if the script has none of these, a bit flipped in memory"
)
"""What a sentence about states that differ ends with."""
TOGETHER = (
    "all must leave it in the same step: decide by what is the same on every worker, such as a sum, and not by the "
    "rank, the clock or a worker's own data"
)


class Verdict(Enum):
    """What a member does with a total."""

    COMMIT = "commit"
    """Keep it: the round is done."""
    LEAVE = "leave"
    """Every member has ended its training: the job is over."""
    EVICT = "evict"
    """Some member's state is wrong: drop the total and repeat the round without that member."""


def check(total: Total, rank: int, origins: Mapping[int, int] | None = None) -> Verdict:
    """What this rank does with a total; `Evicted` where its own state is wrong, `Divergence` where nothing can be."""
    if total.astray and total.leaving:
        raise left_alone(total)
    if total.astray:
        return Verdict.COMMIT  # one has committed a step that others are within: of course their states differ
    if len(set(total.digests.values())) > 1:
        if total.digests[rank] != right_digest(total.digests, origins or {}):
            raise Evicted(f"the state of worker {rank} differs from that of the other workers{CAUSES}")
        return Verdict.EVICT
    if total.leaving:
        if total.kind is RoundKind.END and not any(total.counts):
            return Verdict.LEAVE
        if total.kind is RoundKind.EXCHANGE and total.leaving + total.noted == len(total.digests):
            return Verdict.COMMIT  # newcomers have reached the end of the loop too, and have a note to send first
        raise left_alone(total)
    wrong = [lane for lane, count in enumerate(total.counts) if count != 1]
    if wrong:
        raise Divergence(f"lane {wrong[0]} was counted {total.counts[wrong[0]]} times instead of once")
    return Verdict.COMMIT


def left_alone(total: Total) -> Divergence:
    """Some members have ended their training, and others have not."""
    few = f"{total.leaving} of {len(total.digests)} workers"
    return Divergence(f"{few} left the loop while the others continued; {TOGETHER}")


def right_digest(digests: Mapping[int, int], origins: Mapping[int, int]) -> int:
    """Return the digest of the right state if they differ: the only one that one fault explains, or the majority's.

    One fault corrupts one member's state and, if others have copied it since, theirs as well. Counting alone would make
    a corrupted state the right one because it was copied (`origins`: whose state each rank has).
    """
    families: dict[int, set[int]] = {}
    for rank in digests:
        families.setdefault(origins.get(rank, rank), set()).add(rank)
    explained = []
    for truth in set(digests.values()):
        wrong = {rank for rank, digest in digests.items() if digest != truth}
        alike = len({digests[rank] for rank in wrong}) == 1
        if len(wrong) == 1 or (alike and wrong in families.values()):
            explained.append(truth)
    if len(explained) == 1:
        return explained[0]
    (majority, most), (_, second) = Counter(digests.values()).most_common(2)
    if most == second:
        raise Divergence(f"the states of workers {_listed(digests)} differ and none is in the majority{CAUSES}")
    return majority


def _listed(digests: Mapping[int, int]) -> str:
    """Say which ranks have which state: "0 and 1 | 2"."""
    alike: dict[int, list[str]] = {}
    for rank in sorted(digests):
        alike.setdefault(digests[rank], []).append(str(rank))
    return " | ".join(" and ".join(ranks) for ranks in alike.values())


def may_go_on(
    active: set[int], left: set[int], memberships: Iterable[Collection[int]], hosts: Sequence[Collection[int]]
) -> bool:
    """Whether the active members that are left may continue: they are a majority of the members not known to be dead.

    Of two halves of a partitioned network, at most one may. A host fails as a whole or not at all, so a member missing
    from a host where others are left is dead; a member of a host with none left may be alive on the other side.

    If the network breaks while the membership changes, one half may count by the new membership and the other may never
    have heard of it. So the members left must be a majority of each of the `memberships` that the other half may count
    by; both halves know one of them, and two disjoint sets cannot both be a majority of it.
    """
    seen = {rank for host in hosts if left & set(host) for rank in host}
    for members in map(set, memberships if hosts else ()):
        unsure, staying = members - left - seen, active & members
        if unsure and not has_majority(staying, staying | unsure):
            return False
    return True


def has_majority(left: set[int], members: set[int]) -> bool:
    """Whether these are most of the members; of two equal halves, the one with the first member is."""
    return 2 * len(left) > len(members) or (2 * len(left) == len(members) and min(members, default=0) in left)


def divide(lanes: int, members: int, which: int) -> tuple[int, ...]:
    """The lanes of one member when all are divided evenly; neighbouring lanes stay together."""
    return tuple(range(which * lanes // members, (which + 1) * lanes // members))


def claims(held: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return which member keeps which lanes: of two holders the first (the other's courier was lost for a while)."""
    taken: set[int] = set()
    kept = []
    for own in held:
        kept.append(tuple(lane for lane in own if lane not in taken))
        taken.update(own)
    return kept


def hand_over(lanes: int, held: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Deal the lanes that no member holds, each to the member with the fewest (the first of those)."""
    load = [len(own) for own in held]
    more: list[list[int]] = [[] for _ in held]
    for lane in sorted(set(range(lanes)) - {lane for own in held for lane in own}):
        which = min(range(len(held)), key=lambda i: (load[i], i))
        more[which].append(lane)
        load[which] += 1
    return [tuple(own) for own in more]
