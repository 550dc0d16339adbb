"""A worker and the memory it shares with its courier: the loop of `job/session/` and `job/job.py`, as events."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import log2
from typing import TYPE_CHECKING

from meshmend.base.clocks import HANG_FIRST
from meshmend.base.status import DONE, FAILED, HALTED
from meshmend.job.protocol import NEVER, MemberState
from meshmend.run.supervisor.observations import HANGS, MOVES, PAUSES, STOPPED, Stillness
from tests.simulators.ledger import Commit
from tests.simulators.ulfm import MIDWAY, Sum, mix

if TYPE_CHECKING:
    from tests.simulators.couriers import Courier, Mpirun
    from tests.simulators.hosts import Agent, Host
    from tests.simulators.model import Model

SIGKILL = -9
FIRST_DOUBT, FOUND_HANGING, FOUND_STOPPED = 0.3, 2.0, 0.5
"""Seconds that a worker owes something before it looks slow, hanging, or stopped to `run/agent/pulse.py`."""

OUTSIDE = 100.0
"""Seconds after which its user kills a worker that hangs where nobody waits for it: before and after its job."""


class Mode(Enum):
    RUNS = auto()
    PAUSES = auto()
    """It continues by itself later: a slow disk, a long evaluation."""
    HANGS = auto()
    STOPPED = auto()
    FROZEN = auto()
    """Its whole host stands still, and continues by itself."""


PASSING = (Mode.PAUSES, Mode.FROZEN)


class Worker:
    """One process, from its start to its end, and the memory that was made for it."""

    def __init__(self, model: Model, rank: int, host: Host, attempt: int, resume: str, passed: int = 0) -> None:
        self.model, self.rank, self.host, self.attempt = model, rank, host, attempt
        self.process = model.new_process()
        self.mode, self.paused = Mode.RUNS, 0.0
        self.alive, self.exiting, self.status, self.left = True, False, 0, False
        self.owner: Agent | None = None
        # the agent's words
        self.halt, self.fresh, self.opened, self.world, self.world_job = 0, False, 0, 0, 1
        self.wanted = 0
        # its own
        self.saving = self.raised = False
        self.asked = self.answered = 0
        self.courier: Courier | None = None
        self.daemon: Mpirun | None = None
        self.standby = self.agreed = self.shrink = 0
        self.repairing: float | None = None
        self.released = 0
        """The job that it was let go from."""
        resumed, step = map(int, resume.split("/")) if resume else (1, 0)
        self._begin(*((resumed, step) if resumed > passed else (passed + 1, 0)))
        self.job = 1
        """The job that it has opened last; the one that it is about to open is `goes_to`."""
        self._then: Callable[[], None] | None = None
        self._held = self._poked = False
        self._do(model.case.load * model.dice.uniform(0.7, 1.3), self._loaded)

    def _begin(self, job: int, step: int = 0) -> None:
        """Nothing is known of this job yet, in the memory of the worker or in that of its courier."""
        self.goes_to, self.ready, self.out = job, False, False
        self.round, self.digested, self.joined, self.wire = 0, NEVER, False, False
        self.step = step
        self.state = self.model.ledger.truth[job][step]
        self.turn = 0
        """Sums of the step that the script has made: from the first to the commit, there is no state to hand out."""
        self.counts: tuple[int, ...] = ()
        """What they counted."""
        self.committed = 0
        """Within a step: the state before it, where that is still there."""
        self.have: dict[int, int] = {}
        self.part: tuple[dict[int, int], int, bool, bool] = ({}, 0, False, False)
        self.kept = self.model.case.jobs == 1
        """The last state is saved, and all know it; only where there is another job, somebody wants it."""
        self.pending: Commit | None = None
        self.account: Sum | None = None
        self.saved_before = step
        self.summed = self.taken = (0, 0)
        self.memory = MemberState(self.rank)
        self.asked_round, self.asked_lanes = NEVER, ()
        self.state_wanted = False
        self.given: tuple[int, int, Commit | None] | None = None
        self.finished = self.afresh = False
        self.total: dict[int, Sum] = {}
        self.made: dict[int, tuple[int, int]] = {}
        """World and shrink in which each total came here."""
        self.owing: float | None = None

    @property
    def over(self) -> bool:
        """The last step of its job is done, as its courier says, or the agent does."""
        return self.finished or self.released >= self.job

    # ── time passes ──

    def _do(self, seconds: float, then: Callable[[], None]) -> None:
        self._then = then
        self.model.clock.after(seconds, self._did, then)

    def _did(self, then: Callable[[], None]) -> None:
        if self.exiting or self._then is not then:
            return
        if self.mode is not Mode.RUNS:
            self._held = True
            return
        self._then = None
        self.model.moved()
        if not self.exiting:
            then()
            self.poke()

    def pause(self, mode: Mode, seconds: float = 0.0) -> None:
        """Make no progress from here on, or for so long."""
        if self.mode is Mode.RUNS and not self.exiting:
            self.mode, self.paused = mode, self.model.clock.now
            if mode in PASSING:
                self.model.clock.after(seconds, self._go_on)
            else:
                self.model.clock.after(OUTSIDE, self._killed_by_user)

    def _killed_by_user(self) -> None:
        if not self.exiting:
            others = [one for host in self.model.hosts.values() for one in host.processes if one is not self]
            between = not self.ready or (self.out and self.job < self.model.case.jobs)
            waited_for = between and any(one.alive and one.mode is not Mode.STOPPED for one in others)
            if self.mode is Mode.STOPPED and waited_for and self.model.launcher is not None:
                self.model.clock.after(OUTSIDE, self._killed_by_user)  # the launcher must find that by itself
            elif self.owing is None or self.over:
                self.kill()
            else:
                self.model.clock.after(OUTSIDE, self._killed_by_user)

    def _go_on(self) -> None:
        if self.mode not in PASSING:
            return
        self.mode = Mode.RUNS
        if self._held and self._then is not None:
            self._held = False
            self._did(self._then)
        self.poke()

    def poke(self) -> None:
        """Something changed in its memory."""
        if not self._poked and not self.exiting:
            self._poked = True
            self.model.clock.after(self.model.dice.uniform(0.0001, 0.001), self._look)

    def _look(self) -> None:
        self._poked = False
        if self._then is None and not self.exiting and self.mode is Mode.RUNS:
            self._go()
        self._hand_out()

    # ── the script ──

    def _loaded(self) -> None:
        self.job, self.ready = self.goes_to, True
        self.model.changed()
        if self.courier is not None:
            self.courier.wake()

    def _go(self) -> None:
        if not self.ready or self.out:
            return
        if self.halt and not (self.turn and self.model.case.in_place):
            self._heed()
        elif not self.joined:
            self._join()
        elif self.memory.done >= self.round:
            self._update()
        elif self.step >= self.model.case.steps:
            self._leave()
        elif self.asked != self.answered and self.asked_round == self.round:
            self._compute()

    def _heed(self) -> None:
        first = self.account is not None and min(self.account.total.digests) == self.rank
        if self.halt == 2 or first:
            self.saving = True
            self._do(self.model.case.save, self._saved)
        else:
            self.exit(HALTED)

    def _saved(self) -> None:
        self.saving = False
        if self.pending is not None:
            self.model.ledger.write(self.pending, apart=self.model.is_minority or not self.model.reaches(self.host))
            self.pending = None
        if self.joined or self.memory.active:
            self.model.ledger.save(self.job, self.step, self.committed if self.turn else self.state)
        self.exit(HALTED)

    def _join(self) -> None:
        if self.memory.active:
            self.joined, self.round = True, self.memory.done + 1
            if self.given is not None:
                self.state, self.step, self.pending = self.given
                self.saved_before = self.step
                if self.courier is not None:
                    self.summed = self.courier.mpirun.number, self.courier.shrink
                self.taken = self.memory.made_by
            self.digested = self.memory.done
            self.poke()
        elif self.over:  # it was never needed, and passes through
            self._do(self.model.case.tail, self._end)
            self.out = True

    def _compute(self) -> None:
        if self.rank in self.model.case.raising and self.step >= self.model.case.raises_in:
            self.raised = True
            self.exit(FAILED)
            return
        wanted, asked = set(self.asked_lanes), self.asked
        if not set(self.have) <= wanted or self.afresh:
            self.have, self.afresh = {}, False
        lacking = sorted(wanted - set(self.have))

        def computed() -> None:
            self.wire = True
            self.have |= {lane: mix(self.state, self.step, self.turn, lane) for lane in lacking}
            self._answer(asked, self.have)

        self._do(self.model.case.lane * len(lacking) * self.model.dice.uniform(0.8, 1.2), computed)

    def _answer(self, asked: int, part: dict[int, int], *, leaving: bool = False, noted: bool = False) -> None:
        self.part = dict(part), mix(self.state, self.step), leaving, noted
        self.answered, self.owing = asked, None
        if self.courier is not None:
            self.courier.wake()

    def _update(self) -> None:
        total = self.total[self.round]
        self.account, self.taken = total, self.made[self.round]
        if self.pending is not None:
            self.model.ledger.write(self.pending)
            self.pending = None
        if total.total.noted:
            self.digested, self.round = self.round, self.round + 1
            if self.step >= self.model.case.steps and not self.kept:
                self.kept = True
                self.model.ledger.save(self.job, self.step, self.state)
            self.poke()
            return
        every = self.model.case.every
        if not self.turn and min(total.total.digests) == self.rank and self.step // every > self.saved_before // every:
            self.saved_before = self.step
            self.model.clock.after(self.model.case.save, self._written, self.job, self.step, self.state)
        self._do(self.model.case.lane, lambda: self._commit(total))

    def _written(self, job: int, step: int, state: int) -> None:
        if self.alive:
            self.model.ledger.save(job, step, state)

    def _commit(self, total: Sum) -> None:
        """The script has changed its state; then it makes another sum, or commits."""
        if not self.turn:
            self.committed = self.state
        self.state = mix(self.state, total.payload)
        self.counts += tuple(total.total.counts)
        self.turn += 1
        if self.turn < self.model.case.sums:
            self.round, self.have = self.round + 1, {}
            return
        self.step += 1
        self.pending = Commit(
            self.attempt, self.job, self.step - 1, total.key, tuple(sorted(total.total.digests)), self.counts,
            self.state,
        )  # fmt: skip
        self.model.ledger.check(self.pending)
        self.turn, self.counts = 0, ()
        self.summed = self.made[self.round]
        self.digested, self.round, self.have = self.round, self.round + 1, {}

    def _leave(self) -> None:
        if self.over:
            if self.pending is not None:
                self.model.ledger.write(self.pending)
                self.pending = None
            self.out = True
            self._do(self.model.case.tail, self._end)
        elif self.asked != self.answered and self.asked_round == self.round:
            self._answer(self.asked, {} if self.kept else dict.fromkeys(self.asked_lanes, 0), leaving=self.kept,
                         noted=not self.kept)  # fmt: skip

    def _end(self) -> None:
        """The script is at its end, or opens its next job."""
        if self.job < self.model.case.jobs:
            self._begin(self.job + 1)
            self._loaded()  # which wakes its old courier too
            return
        self.left = self.model.case.tail_status == DONE
        self.exit(self.model.case.tail_status)

    # ── what the courier brings and asks for ──

    def keep(self, total: Sum, world: int, shrink: int) -> None:
        """Take a total."""
        self.total[total.round], self.made[total.round] = total, (world, shrink)

    def ask(self, round: int, lanes: tuple[int, ...]) -> None:
        """Ask for the part of a round."""
        self.asked, self.asked_round, self.asked_lanes = self.asked + 1, round, lanes
        self.owing = self.model.clock.now
        self.poke()

    def state_for_others(self) -> tuple[int, int, Commit | None] | str | None:
        """The state, the step, and the step not yet written down; None until the worker has put them down."""
        if self.mode not in (Mode.STOPPED, Mode.FROZEN) and not self.exiting:
            if self.digested >= self.memory.done:
                self.state_wanted = False
                return self.state, self.step, self.pending
            if self.midway:
                self.state_wanted = False
                return MIDWAY
        if not self.state_wanted:
            self.state_wanted = True
            if self.owing is None:
                self.owing = self.model.clock.now
        return None

    @property
    def midway(self) -> bool:
        """Whether the script has come to another sum of its step."""
        return self.turn > 0 and self.round > self.memory.done

    def _hand_out(self) -> None:
        if self.state_wanted and (self.digested >= self.memory.done or self.midway) and self.courier is not None:
            if self.asked == self.answered:
                self.owing = None
            self.courier.wake()

    @property
    def still(self) -> Stillness:
        """`RankSeen.still`."""
        if self.mode is Mode.STOPPED and self.alive and (not self.ready or self.out):
            return STOPPED if self.model.clock.now - self.paused > HANG_FIRST else MOVES
        if self.mode is Mode.RUNS or self.owing is None or not self.alive:
            return MOVES
        owed = self.model.clock.now - self.owing
        if owed < FIRST_DOUBT:
            return MOVES
        if self.mode is Mode.STOPPED:
            return STOPPED if owed > FOUND_STOPPED else PAUSES
        return PAUSES if owed < FOUND_HANGING else Stillness(HANGS + int(log2(owed / FOUND_HANGING)))

    # ── its end ──

    def kill(self) -> None:
        """SIGKILL."""
        self.exit(SIGKILL)

    def exit(self, status: int, seconds: float | None = None) -> None:
        """End; the memory is given back first."""
        if self.exiting:
            return
        self.exiting, self.status = True, status
        self.model.note("exits", self.rank, status)
        seconds = self.model.case.exit * self.model.dice.uniform(0.3, 1.7) if seconds is None else seconds
        self.model.clock.after(self.model.dice.uniform(0.0, 0.016), self._courier_sees)
        self.model.clock.after(seconds, self.vanish)
        self.model.changed()

    def _courier_sees(self) -> None:
        if self.courier is not None:
            self.courier.wake()

    def vanish(self) -> None:
        """It is gone."""
        if not self.alive:
            return
        self.alive, self.exiting = False, True
        self.host.see_soon()
