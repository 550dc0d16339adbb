"""Detects a worker that makes no progress, with no timeout for the user to choose.

A worker is judged by its own pace: the longest recent pause between two signs of progress, counted separately inside a
lane and outside (an update, an evaluation). Before it has shown a pace (the first rounds compile) it is not judged,
unless it is stopped.

A busy machine must not look like a hang. So once a pause is longer than any before, only the worker's *own* time
counts: time in which it is stopped or waits for something other than the processor, and processor time it uses. A
process that is ready to run but does not get the processor accumulates nothing.

A worker that is stopped does not continue by itself, so its *usual* pause is the measure, the median: the longest one
is often that of the first rounds, which compile, many times as long as any later one.

The launcher, which sees all workers, decides whether to kill one that hangs: if all of them hang, the cause is outside
(a file system, an evaluation), and if one after another hangs in the same step, the lane itself may be slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import log2
from statistics import median

from meshmend.base.clocks import COURIER_LOOK, HANG_FIRST, HANG_FLOOR, HANG_LAPSE, HANG_OUTSIDE, HANG_PATIENCE
from meshmend.base.processes import Doing
from meshmend.run.supervisor.observations import HANGS, MOVES, PAUSES, STOPPED, Stillness

SEEN = 8
"""Signs of progress before a worker is judged."""
RECENT = 64
FLOOR = {Doing(what): seconds for what, seconds in HANG_FLOOR.items()}
"""Least own time of a hang, by what the worker does."""
LOOKS = 4
"""Polls per usual pause of a worker: a hang is detected at most a quarter of that later than by constant polling."""


@dataclass
class Pulse:
    """One worker's signs of progress."""

    progress: int = -1
    inside: bool = False
    owing: float | None = None
    """Since when it has owed something without a sign of progress."""
    signs: int = 0
    """Signs since the first poll; several may come between two polls."""
    own: float = 0.0
    """Own time since it became suspicious."""
    pauses: dict[bool, deque[float]] = field(
        default_factory=lambda: {True: deque(maxlen=RECENT), False: deque(maxlen=RECENT)}
    )
    _looked: tuple[float, float] | None = None

    @property
    def rest(self) -> float:
        """How many seconds it may go unpolled: a fraction of its own pace; 0 if that is unknown."""
        if self.signs < SEEN or self._looked is not None:
            return 0.0
        return self._usual(self.inside) / LOOKS

    def _usual(self, inside: bool) -> float:
        found = self.pauses[inside] or self.pauses[not inside]
        return median(found) if found else 0.0

    def still(
        self, progress: int, inside: bool, owes: bool, now: float, doing: Callable[[], tuple[Doing, float]]
    ) -> Stillness:
        """Judge a worker by its progress counter, whether it is inside a lane, and whether its courier waits for it."""
        if progress != self.progress:
            if self.progress >= 0:
                self.signs += progress - self.progress
            if self.owing is not None:
                self.pauses[self.inside].append(now - self.owing)
            self.progress, self.inside = progress, inside
            self.own, self._looked = 0.0, None
            self.owing = now if owes else None
            return MOVES
        if inside != self.inside:
            # It has begun to compute, or ended: what it took before is not to be judged by the other measure.
            self.inside, self.own, self._looked = inside, 0.0, None
            self.owing = now if owes else None
            return MOVES
        if not owes or self.owing is None:
            self.owing = now if owes else None  # while it waits for other workers, the pause is not its own
            return MOVES
        known = self.signs >= SEEN
        longest = max(self.pauses[inside], default=max(self.pauses[not inside], default=0.0))
        limit = HANG_PATIENCE * longest if known else HANG_FIRST
        if now - self.owing <= (HANG_PATIENCE * self._usual(inside) if known else limit):
            return MOVES
        what, used = doing()
        if now - self.owing <= limit and what is not Doing.STOPPED:
            self.own, self._looked = 0.0, None  # it was stopped for a moment
            return MOVES
        if not known and what is not Doing.STOPPED:
            return PAUSES
        if self._looked is not None:
            past, before = self._looked
            # A longer time between two polls is not the worker's fault: the agent did not run (a suspended machine).
            self.own += {Doing.RUNNING: used - before, Doing.TRACED: 0.0}.get(what, min(now - past, HANG_LAPSE))
        self._looked = now, used
        floor = FLOOR.get(what, HANG_OUTSIDE)
        most = floor if what is Doing.STOPPED else max(limit, floor if inside else HANG_OUTSIDE)
        if self.own <= most:
            return PAUSES
        return STOPPED if what is Doing.STOPPED else Stillness(HANGS + int(log2(self.own / most)))


@dataclass
class LoadingPulse:
    """Whether a worker that loads, or is between two jobs, is stopped: for `HANG_FIRST` seconds, at every look.

    How long it takes there is its own affair. But a stopped one does not continue by itself, and others wait for it.
    """

    looked: float = 0.0
    since: float | None = None

    def still(self, now: float, look: Callable[[], bool]) -> Stillness:
        """`STOPPED` if it is."""
        if now - self.looked > COURIER_LOOK:
            if not look():
                self.since = None
            elif self.since is None or now - self.looked > HANG_FIRST:  # the agent itself did not run meanwhile
                self.since = now
            self.looked = now
        return STOPPED if self.since is not None and now - self.since > HANG_FIRST else MOVES


@dataclass
class CourierPulse:
    """Detects that a courier, or the mpirun process that it belongs to, is stopped: seen stopped twice in a row.

    Others wait for it, and nothing else shows that: it is neither dead nor late. A check costs as much as a small sum,
    so it happens rarely.
    """

    looked: float = 0.0
    seen: int = 0

    def stopped(self, now: float, look: Callable[[], bool]) -> bool:
        """Whether it is stopped, as of the last check."""
        if now - self.looked > COURIER_LOOK:
            self.looked = now
            self.seen = self.seen + 1 if look() else 0
        return self.seen > 1
