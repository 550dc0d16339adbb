"""What a round's total says: whether the step counts, and whose state is right where they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from meshmend.job.protocol.records import Divergence, Evicted, Total


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
    if len(set(total.digests.values())) > 1:
        if total.digests[rank] != right_digest(total.digests, origins or {}):
            raise Evicted(f"the state of worker {rank} differs from that of the other workers")
        return Verdict.EVICT
    if total.leaving:
        if total.leaving != len(total.digests) or any(total.counts):
            raise Divergence(f"{total.leaving} of {len(total.digests)} workers ended while the others continued")
        return Verdict.LEAVE
    wrong = [lane for lane, count in enumerate(total.counts) if count != 1]
    if wrong:
        raise Divergence(f"lane {wrong[0]} was counted {total.counts[wrong[0]]} times instead of once")
    return Verdict.COMMIT


def right_digest(digests: Mapping[int, int], origins: Mapping[int, int]) -> int:
    """The digest of the right state, where they differ: the only one that a single fault explains, or the majority's.

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
        raise Divergence(f"the states of the workers differ and none is in the majority: {dict(digests)}")
    return majority
