"""One rank: the states it can be in, what moves it from one to another, and what the supervisor remembers of it.

    DUE ◄─start──► STARTING ──► READY ◄──► STANDBY ──► ACTIVE
     ▲                 └───────────┴──────────┴──────────┤ killed by us, or seen to exit
     │ replace                                           ▼
     └───────────────────────── DEAD ◄── ended ──── EXITING
                                 └──► GIVEN_UP

A script may have several jobs, one after another. The run as a whole is always in one of them, and these states are
about that one: when all workers have left it and one opens the next, every live worker is STARTING again.

`TRANSITIONS` is authoritative; `docs/how-it-works.md` has the picture made from it. A pair that is not in it cannot
happen, and is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from meshmend.run.supervisor.observations import MOVES, Cause, CourierState, RankSeen


class RankState(Enum):
    """The state of a rank."""

    DUE = auto()
    """Its worker is to be started soon."""
    STARTING = auto()
    """Its worker has been started and is loading."""
    READY = auto()
    """Its worker has opened the job and waits for a world."""
    STANDBY = auto()
    """Its courier is in the world; its worker holds no state: a spare, or a newcomer."""
    ACTIVE = auto()
    """It holds the state and takes part in sums."""
    EXITING = auto()
    """It was killed by us or has begun to exit; its status is not known yet."""
    DEAD = auto()
    """It exited, and the supervisor has handled that; or its host is gone."""
    GIVEN_UP = auto()
    """It failed too often to be started again."""


class Sign(Enum):
    """What was observed of a worker, or decided about it."""

    LOADS = auto()
    OPENED = auto()
    STANDS_BY = auto()
    TAKES_PART = auto()
    EXITS = auto()
    ENDED = auto()
    START = auto()
    KILL = auto()
    POSTPONE = auto()
    """Decided: start it, but only after the interrupted step."""
    WRITE_OFF = auto()
    """Decided: its host is gone, and its worker no longer counts."""
    GIVE_UP = auto()
    MISS = auto()
    """Its start could not be carried out, and will be retried."""
    NEXT_JOB = auto()
    """Decided: the run moves on to the next job of the script, which this worker has to open."""


ALIVE = (RankState.STARTING, RankState.READY, RankState.STANDBY, RankState.ACTIVE, RankState.EXITING)
GONE = (RankState.DUE, RankState.DEAD, RankState.GIVEN_UP)

_S, _R, _B, _A, _E = ALIVE
_SEEN = (Sign.LOADS, Sign.OPENED, Sign.STANDS_BY, Sign.TAKES_PART, Sign.EXITS)
TRANSITIONS: dict[tuple[RankState, Sign], RankState] = {
    # Within a job a worker only moves forward: it never un-opens a job or leaves the sums.
    **{(_S, sign): state for sign, state in zip(_SEEN, ALIVE, strict=True)},
    (_R, Sign.OPENED): _R,
    (_R, Sign.STANDS_BY): _B,
    (_R, Sign.TAKES_PART): _A,
    (_B, Sign.OPENED): _R,  # its world is gone, and it waits for the next one
    (_B, Sign.STANDS_BY): _B,
    (_B, Sign.TAKES_PART): _A,
    (_A, Sign.TAKES_PART): _A,
    **{(_E, sign): _E for sign in (*_SEEN, Sign.NEXT_JOB)},  # the kill has not arrived yet
    **{(state, Sign.NEXT_JOB): _S for state in (_S, _R, _B, _A)},
    **{(state, Sign.EXITS): _E for state in ALIVE},
    **{(state, Sign.KILL): _E for state in ALIVE},
    **{(state, Sign.ENDED): RankState.DEAD for state in ALIVE},
    **{(state, Sign.WRITE_OFF): RankState.DEAD for state in (*ALIVE, *GONE)},
    **{(state, Sign.START): _S for state in GONE},
    **{(state, sign): state for state in GONE for sign in (*_SEEN, Sign.ENDED, Sign.NEXT_JOB)},  # of an old worker
    (RankState.DEAD, Sign.POSTPONE): RankState.DUE,
    (RankState.DEAD, Sign.GIVE_UP): RankState.GIVEN_UP,
    (_S, Sign.MISS): RankState.DUE,
}


class IllegalTransition(Exception):
    """Something was observed of a rank, or decided about it, that is impossible in its present state."""


def transition(state: RankState, sign: Sign) -> RankState:
    """The next state."""
    try:
        return TRANSITIONS[state, sign]
    except KeyError:
        raise IllegalTransition(f"{sign.name} cannot happen to a rank that is {state.name}") from None


@dataclass
class Rank:
    """A rank, as the supervisor sees it."""

    number: int
    host: str
    state: RankState = RankState.DEAD
    seen: RankSeen = field(default_factory=lambda: RankSeen(-1))
    """Its worker, with respect to the job that the run is in: see `within`."""
    raw: RankSeen = field(default_factory=lambda: RankSeen(-1))
    """The same, as its agent saw it."""
    failures: int = 0
    """How often in a row its worker ended before it completed a step."""
    joining: bool = False
    """It was started while others train, and its world has not been opened yet."""
    courier_lost: float = 0.0
    """The time since which its courier has been missing; 0: it is not."""
    due: tuple[int, float] = (0, 0.0)
    """In state DUE: the step after which, or the time at which, its worker is to be started."""
    founder: bool = True
    """Its worker was started at the beginning of the attempt, not to join others that train."""
    first_step: int | None = None
    """The step its worker began with: for a founder when it opened its job, for others when they received the state."""
    killed: Cause = Cause.NONE
    """Why we killed its worker, if we did: an agent that was replaced may not have done it."""
    replaced: int | None = None
    """The process that a start is to replace (0: none), until the new one is seen."""
    ordered: float = 0.0
    """When that start was ordered."""
    misses: int = 0
    """How often in a row its start could not be carried out."""
    released: float | None = None
    """When its worker was told to leave."""
    released_from: int = 0
    """The job that it was told to leave."""
    lapsed: bool = False
    """Its worker died after the last step of a job: it is replaced only if there is another job."""

    def apply(self, sign: Sign) -> None:
        """Move to the next state."""
        self.state = transition(self.state, sign)

    def see(self, raw: RankSeen, world: int, job: int = 1) -> bool:
        """Take in what its agent saw; return whether its worker has ended since the last turn."""
        seen = within(raw, job, self.seen)
        if self.unseen(seen):
            return False
        self.replaced = None
        if self.state not in ALIVE:
            return False
        self.misses = 0
        # A worker that joins others counts as active before it has received their state, and with it their step.
        began = seen.ready if self.founder else seen.active and seen.summed_world > 0
        if began and self.first_step is None:
            self.first_step = seen.step
        self.seen, self.raw = seen, raw
        self.apply(sign_of(seen, world))
        return self.state is RankState.DEAD

    def next_job(self, job: int) -> None:
        """Move on to another job, which its worker has yet to open."""
        self.apply(Sign.NEXT_JOB)
        self.first_step, self.released, self.courier_lost = None, None, 0.0
        self.founder = not self.joining
        self.seen = within(self.raw, job, self.seen)
        if self.alive and self.replaced is None:
            self.see(self.raw, 0, job)

    def unseen(self, seen: RankSeen | None) -> bool:
        """Whether a start was ordered but not seen yet: this is the previous worker, or none."""
        return self.replaced is not None and (seen is None or seen.process in (0, self.replaced))

    def write_off(self) -> None:
        """Stop counting on its worker, whose host is gone or whose start never happened."""
        self.apply(Sign.WRITE_OFF)
        self.replaced = None

    def forget(self) -> None:
        """Where its worker is dead, take it as if there had never been one."""
        if not self.alive:
            self.seen = self.raw = RankSeen(self.number)

    def miss(self) -> None:
        """Record that the ordered start could not be carried out; the previous worker is still there."""
        self.apply(Sign.MISS)
        self.seen = self.raw = RankSeen(self.number, process=self.replaced or 0)
        self.replaced = None
        self.misses += 1

    def started(self) -> None:
        """Record that a start was ordered."""
        self.replaced, self.first_step, self.killed = self.seen.process, None, Cause.NONE
        self.released, self.founder, self.lapsed = None, not self.joining, False
        self.seen = self.raw = RankSeen(self.number)
        self.apply(Sign.START)

    @property
    def alive(self) -> bool:
        """Whether its worker has not ended."""
        return self.state in ALIVE

    @property
    def awaited(self) -> bool:
        """Whether nothing has been seen of its worker yet: it was to be started, or taken over."""
        return self.replaced is not None

    @property
    def doubtful(self) -> bool:
        """Whether it is being started after failed starts: do not count on it before it is seen."""
        return self.misses > 0 and self.awaited

    @property
    def completed_steps(self) -> bool:
        """Whether its worker has taken part in more than the step it began with."""
        return self.first_step is not None and self.seen.step > self.first_step

    @property
    def failed_itself(self) -> bool:
        """Whether its worker ended by itself, and was not killed, while it was needed: it may always do so."""
        seen = self.seen
        ended = seen.status is not None and seen.cause is Cause.NONE and not seen.over
        return ended and ((seen.status or 0) >= 0 or seen.error is not None)


def within(seen: RankSeen, job: int, before: RankSeen) -> RankSeen:
    """Translate an observation to one job, if the worker is in another: it has left this one, or not opened it yet.

    `before` is the previous observation.
    """
    if seen.job > job:
        return replace(
            seen, ready=True, over=True, left=True, active=before.active, step=before.step, still=MOVES, stuck=False,
            summed_world=before.summed_world, summed_shrink=before.summed_shrink,
        )  # fmt: skip
    if seen.job < job:
        waited_for = seen.left or not seen.ready  # it loads, or is on its way to this job
        return replace(
            seen, ready=False, over=False, active=False, step=0, still=seen.still if waited_for else MOVES, stuck=False,
            courier=CourierState.NONE, summed_world=0, summed_shrink=0,
        )  # fmt: skip
    return seen


def sign_of(seen: RankSeen, world: int) -> Sign:
    """Reduce an observation to a sign, in this world."""
    if seen.status is not None:
        return Sign.ENDED
    if seen.exiting:
        return Sign.EXITS
    if seen.active:
        return Sign.TAKES_PART
    if seen.ready:
        return Sign.STANDS_BY if world and seen.standby == world else Sign.OPENED
    return Sign.LOADS
