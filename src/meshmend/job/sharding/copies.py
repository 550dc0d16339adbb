"""Whose copy of a slice is right: what all members conclude alike from the digests of all copies.

They are compared when all holders have updated and before anyone has the new weights. So a wrong copy goes nowhere: the
member that has it ends, as if it had died, and another holder gives the weights out.

With one buddy, two copies that differ have no majority. Had one of them been damaged since it was last compared, its
holder would have found that by itself (`Update`). What is left is an update that gave two results on the same bits, and
since an update replaces the only version that there was, nobody can make it again: the run halts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from meshmend.job.protocol import Divergence, Evicted


def check_copies(copies: Mapping[int, Mapping[int, int]], rank: int) -> frozenset[int]:
    """The ranks that have a wrong copy of anything; `copies` has each holder's digest, for each slice.

    `Evicted` where this rank is one of them, `Divergence` where nobody can tell which copy is right.
    """
    wrong = {holder: number for number, digests in copies.items() for holder in wrong_copies(number, digests)}
    if rank in wrong:
        raise Evicted(
            f"worker {rank}'s copy of slice {wrong[rank]} differs from those of most of its holders: the update is not "
            "a function of its slice alone, or a bit flipped"
        )
    return frozenset(wrong)


def wrong_copies(number: int, digests: Mapping[int, int]) -> frozenset[int]:
    """The ranks whose copy of a slice is not the one that most have."""
    if len(set(digests.values())) <= 1:
        return frozenset()
    (right, most), *_ = Counter(digests.values()).most_common(1)
    if 2 * most <= len(digests):
        holders = " and ".join(map(str, sorted(digests)))
        raise Divergence(
            f"the copies of slice {number} that workers {holders} have differ and none is in the majority: resume from "
            "the last checkpoint, and use buddies=2 to have a majority next time"
        )
    return frozenset(rank for rank, digest in digests.items() if digest != right)
