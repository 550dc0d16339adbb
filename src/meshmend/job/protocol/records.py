"""What members remember, what they send each other, and how a member's part in the job can end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshmend.job.protocol.rounds import NEVER, RoundKind

Stamp = tuple[int, int, int]
"""A round, a world and a shrink."""


class Failure(Exception):
    """An operation failed here because a member died or the group was revoked; elsewhere it may have succeeded."""


class Evicted(Exception):
    """The state of this member differs from the majority's: it must exit, and the others continue without it."""


class Cut(Exception):
    """The missing members may be continuing without this side: only the launcher, which sees all hosts, can decide."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"workers {ranks} may be cut off from the others")
        self.ranks = ranks


class Lost(Exception):
    """Every member that had the state is dead: the others have nothing to continue from."""


class Divergence(Exception):
    """The members' states differ without a majority, or a lane was not counted once: no result can be trusted."""


@dataclass(frozen=True)
class Record:
    """What a member sends the others during recovery."""

    rank: int
    done: int
    """The last round whose total it holds."""
    active: bool
    """Whether it has the state, and so takes part in rounds."""
    lanes: tuple[int, ...]
    """The lanes it is responsible for in the round after `done`."""
    fresh: bool = False
    """Whether it knows that no round can have been completed yet."""
    origin: int = -1
    """The rank whose state it has copied since the last round; its own rank, or -1, if it has copied none."""
    attempt: int = 0
    """Which attempt of the run: the first part of the epoch number."""
    world: int = 0
    """Which world of couriers it is in: the second part of the epoch number."""
    shrink: int = 0
    """How often that world has shrunk: the third part of the epoch number, the same for all that took part."""
    made_by: tuple[int, int] = (0, 0)
    """The world and the shrink of the group that made the total of `done`."""
    group: tuple[int, int] = (0, 0)
    """The same of the last group that it was a member of."""


@dataclass(frozen=True)
class Total:
    """What all members learn from a round, besides the payload."""

    counts: Sequence[int]
    """How often each lane was counted."""
    digests: dict[int, int]
    """The digest of each active rank's state."""
    leaving: int
    """How many members have no more steps to do."""
    by: Sequence[int] = ()
    """Which rank computed each lane, where every lane was counted once."""
    noted: int = 0
    """How many members brought a note instead of gradients."""
    astray: bool = False
    """Whether members came with different sums of a step: their workers say so, and end."""
    save: int = 0
    """How many members want all of them to write a checkpoint of the state after this round."""

    @property
    def kind(self) -> RoundKind:
        """What the round was for."""
        if self.leaving and self.leaving == len(self.digests):
            return RoundKind.END
        return RoundKind.EXCHANGE if self.noted else RoundKind.SUM


@dataclass
class MemberState:
    """What must survive the courier: in production it is in the memory shared with the worker.

    A courier may be killed between any two writes, so `assigned` carries the round it is for: until that is written,
    the member is responsible for nothing, and recovery assigns lanes to it again.
    """

    rank: int
    done: int = NEVER
    """The last round whose total is here."""
    active: bool = False
    """Whether this member has the state, and so takes part in rounds."""
    assigned: tuple[int, tuple[int, ...]] = (NEVER, ())
    """(round, lanes)."""
    copied: tuple[int, int] = (NEVER, -1)
    """(round, rank): whose state, after which round, this member received."""
    stamps: tuple[Stamp, Stamp] = ((NEVER, 0, 0), (NEVER, 0, 0))
    """By which group the totals of the last even and of the last odd round were made."""
    group: tuple[int, int] = (0, 0)
    """World and shrink of the last group that it was a member of; for a newcomer, of the one that made its state."""

    def complete(self, round: int, group: tuple[int, int]) -> None:
        """The total of a round is here, which this group made."""
        even, odd = self.stamps
        # Written before `done`, in the place of the round before last: half of this says nothing of the last round.
        self.stamps = (even, (round, *group)) if round % 2 else ((round, *group), odd)
        self.done = round

    @property
    def made_by(self) -> tuple[int, int]:
        """World and shrink of the group that made the last total."""
        round, world, shrink = self.stamps[self.done % 2]
        return (world, shrink) if round == self.done else (0, 0)

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes this member is responsible for in the round after `done`."""
        return self.assigned[1] if self.assigned[0] == self.done + 1 else ()

    @property
    def origin(self) -> int:
        """The rank whose state this is a copy of; its own once it has completed a round with it."""
        return self.copied[1] if self.copied[0] == self.done and self.copied[1] >= 0 else self.rank

    def assign(self, lanes: Iterable[int]) -> None:
        """Make this member responsible for these lanes of the round after `done`."""
        self.assigned = (self.done + 1, tuple(sorted(lanes)))
