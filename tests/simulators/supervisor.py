"""Drives the real supervisor and the real protocol together through failures at any point; seeded, without waiting.

`simulate(case)` runs the decisions of `run/supervisor` in turns, as `run/launcher.py` does, in the world of `model.py`:
workers (`workers.py`), couriers over a fake ULFM (`couriers.py`, `ulfm.py`), agents and hosts (`hosts.py`), failures as
data (`faults.py`), and what they write down (`ledger.py`). Whatever must never happen raises `Violation`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from unittest import mock

from meshmend.base.clocks import AGENT_POLL, HOST_FIRST
from meshmend.run.hosts import pool
from meshmend.run.supervisor import POLICIES, Phase, RunConfig, RunState, actions, decide
from meshmend.run.supervisor.messages import HaltReason, Minority, WrongSide
from meshmend.run.supervisor.observations import Observations, StopSignal
from tests.simulators.couriers import Mpirun
from tests.simulators.hosts import Agent, Knock, Line, SimulatedPool
from tests.simulators.ledger import Ledger, Violation
from tests.simulators.model import Case, Model

IDLE = 6
"""Turns without news after which the launcher looks less often: simulated time is cheap, turns are not."""
SLOWEST = 0.5
PATIENCE = 2500.0
"""Simulated seconds after the last fault in which a run must end: a standstill of all workers takes the longest."""
WORLDS = 120
EVENTS = 40_000


class Launcher:
    """The shell around `decide`: as `run/launcher.py`."""

    def __init__(self, model: Model, *, attached: bool = False) -> None:
        self.model, self.alive = model, True
        case = model.case
        here = frozenset(name for name, host in model.hosts.items() if host.here)
        more = sum(place.slots for place in model.added)
        config = RunConfig(
            hosts=model.places, policy=POLICIES[case.policy], workers=case.workers + more, least=case.least, here=here
        )
        phase = Phase.ATTACHING if attached else Phase.BEGINNING
        stepped = attached and model.ledger.last(model.attempt) > (0, -1)
        self.state = RunState(config, phase=phase, attempt=model.attempt, stepped=stepped)
        if attached:
            self.inherit()
        self.pool = SimulatedPool(model)
        self.blocked = 0.0
        self.stopped_until = 0.0
        self.signalled: StopSignal | None = None
        self._todo: deque[actions.Action] = deque()
        self._again = False
        self._worlds: dict[int, Mpirun] = {}
        self._probes: list[Knock] | None = None
        self._expelled: dict[str, bool] = {}
        self._checkpoint: str | None = None
        self._idle = 0
        self._due = 0.0
        self._turn = 0
        before = len(model.lines)
        self.pool.call_all()
        self._own = before
        self._open_until = model.clock.now + HOST_FIRST
        self._schedule(0.0)

    def inherit(self) -> None:
        """As `journal.halted_before`."""
        if self.model.halt is not None and not isinstance(self.model.halt[0], (Minority, WrongSide)):
            self.state.halt_reason, self.state.writer = self.model.halt

    @property
    def lines(self) -> list[Line]:
        """Those to its agents."""
        return self.model.lines[self._own :]

    def nudge(self) -> None:
        """There is news: look at the usual pace again."""
        self._idle = 0
        if self.alive and self._due > self.model.clock.now + AGENT_POLL and not self.blocked:
            self._schedule(AGENT_POLL)

    def _schedule(self, seconds: float) -> None:
        self._turn += 1
        self._due = self.model.clock.now + seconds
        self.model.clock.after(seconds, self._take_turn, self._turn)

    def _take_turn(self, turn: int) -> None:
        if not self.alive or turn != self._turn:
            return
        if self.stopped_until > self.model.clock.now:
            self._schedule(self.stopped_until - self.model.clock.now)
            return
        self.blocked = 0.0
        if not self._todo:
            opening = self.state.phase in (Phase.BEGINNING, Phase.ATTACHING) and not self.pool.settled
            if opening and self.model.clock.now < self._open_until:
                self._schedule(AGENT_POLL)
                return
            found = decide(self.state, self._observe(), self.model.clock.now)
            self.model.turns += 1
            self._todo.extend(found)
            self._again = any(isinstance(a, (actions.Adopt, actions.Expel, actions.FindCheckpoint)) for a in found)
            self._idle = 0 if found else self._idle + 1
        while self._todo and not self.blocked:
            self._act(self._todo.popleft())
            if not self.alive:
                return
        if self.blocked or self._todo:
            self._schedule(self.blocked)
        elif self._again:
            self._schedule(0.001)
        else:
            slower = AGENT_POLL * 1.5 ** min(20, max(0, self._idle - IDLE))
            slowest = SLOWEST if self._idle < 60 else 10 * SLOWEST
            self._schedule(min(slowest, slower) * self.model.dice.uniform(0.9, 1.1))

    def _observe(self) -> Observations:
        changes = self.pool.look()
        arrived, _ = self.pool.arrivals()
        self.model.added += arrived
        reachable = frozenset(host for host in self.pool.agents if self.pool.has(host))
        signal, self.signalled = self.signalled, None
        expelled, self._expelled = self._expelled, {}
        checkpoint, self._checkpoint = self._checkpoint, None
        return Observations(
            ranks={view.rank: view for host in reachable for view in self.pool.agents[host].look()},
            ended_worlds=frozenset(number for number, world in self._worlds.items() if not world.alive),
            reachable=reachable,
            lost=frozenset(self.pool.lost),
            hosts_known=self.pool.sure,
            changes=tuple(changes),
            added=tuple((place.name, place.slots) for place in arrived),
            signal=signal,
            unreachable=self._probed(),
            expelled=expelled,
            checkpoint=checkpoint,
        )

    def _probed(self) -> frozenset[str] | None:
        if self._probes is None or any(probe.answer is None for probe in self._probes):
            return None
        probes, self._probes = self._probes, None
        return frozenset(probe.host for probe in probes if not probe.answer)

    def _act(self, action: actions.Action) -> None:
        model = self.model
        if not isinstance(action, actions.Halt | actions.ClearCouriers | actions.NoteDeath):
            model.note("action", action)
        model.did[type(action)] += 1
        match action:
            case actions.Adopt(host=host, ranks=ranks):
                self._tell(host, "adopt", ranks=ranks)
            case actions.NoteAttempt(attempt=attempt):
                model.attempt = attempt
            case actions.Start(rank=rank, host=host, resume=resume, passed=passed):
                self._tell(host, "start", rank=rank, resume=resume, passed=passed)
            case actions.Kill(rank=rank, host=host, cause=cause):
                self._tell(host, "end", rank=rank, cause=cause)
            case actions.Release(rank=rank, host=host, job=job):
                self._tell(host, "release", rank=rank, job=job)
            case actions.Remove(hosts=hosts):
                for host in hosts:
                    self._tell(host, "remove")
            case actions.NoteHalt(reason=reason, writer=writer):
                model.halt = reason, writer
            case actions.Halt(writer=writer):
                self._tell_all("halt", writer=writer)
            case actions.ClearCouriers():
                self._tell_all("clear")
            case actions.OpenWorld(number=number, members=members):
                repair = POLICIES[model.case.policy].repairs
                self._tell_all("open", world=number)
                self._worlds[number] = Mpirun(model, number, members, repair=repair)
                model.mpiruns.append(self._worlds[number])
            case actions.EnterWorld(number=number, fresh=fresh, job=job, wanted=wanted):
                self._tell_all("enter", world=number, fresh=fresh, job=job, wanted=wanted)
            case actions.KillWorld(number=number):
                self._worlds.pop(number).die()
            case actions.Expel(host=host):
                self._expelled[host] = self.pool.expel(host)
            case actions.Probe(hosts=hosts):
                self._probes = self.pool.probe(hosts)  # type: ignore[assignment]
            case actions.FindCheckpoint():
                self._checkpoint = model.ledger.latest
            case actions.Finish():
                self._finish(action)
        model.moved()

    def _finish(self, finish: actions.Finish) -> None:
        for world in self._worlds.values():
            world.die()
        self._tell_all("clear")
        self._tell_all("remove")
        self.pool.close()
        self.alive, self.model.launcher, self.model.finish = False, None, finish
        self.model.launcher_state = self.state
        for host in self.model.hosts.values():
            if host.here:
                for agent in host.agents:
                    agent.die()

    def _tell(self, host: str, command: str, **values: object) -> None:
        if host in self.pool.agents:
            agent = self.pool.agents[host]
            assert isinstance(agent, (Agent, Line))
            agent.do(command, self.state.attempt, **values)

    def _tell_all(self, command: str, **values: object) -> None:
        for host in [*self.pool.agents]:
            self._tell(host, command, **values)


@dataclass
class Outcome:
    """How a run ended."""

    case: Case
    model: Model
    status: int | None
    """None: its launcher was killed and nobody attached."""
    reason: HaltReason | None
    ledger: Ledger
    moves: int
    did: Counter[type] = field(default_factory=Counter)


def simulate(case: Case) -> Outcome:
    """Run a case to its end, and check that it ends as it may, leaves nothing, and kept every promise on the way."""
    model = Model(case)
    try:
        with mock.patch.object(pool, "time", model.clock):
            _drive(model)
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}\n{model.story()}") from error
    finish = model.finish
    return Outcome(
        case, model, finish.status if finish else None, finish.reason if finish else None, model.ledger, model.moves,
        model.did,
    )  # fmt: skip


def _drive(model: Model) -> None:
    model.launcher = Launcher(model)
    while model.finish is None:
        if not model.clock.step(model.last_fault + PATIENCE):
            if model.launcher is None and not model.left_over():
                break  # nobody attached, and all have ended
            raise Violation(f"the run neither ends nor gets further: {model.left_over()}")
        if model.clock.events > EVENTS or len(model.mpiruns) > WORLDS:
            raise Violation(f"the run goes round in circles: {len(model.mpiruns)} worlds, {model.turns} turns")
    # Workers that the launcher could not reach end by themselves when nobody comes for them.
    until = model.clock.now + PATIENCE
    while model.left_over() and model.clock.step(until):
        pass
    if model.left_over():
        raise Violation(f"something was left: {model.left_over()}")
