"""The world that a supervisor is simulated in: hosts, processes, the network, the disk, and what befalls them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshmend.base.clocks import AGENT_ALONE
from meshmend.run.clusters.hosts import Host as Place
from meshmend.run.supervisor import RunState
from meshmend.run.supervisor.actions import Finish
from meshmend.run.supervisor.messages import HaltReason, Minority, WrongSide
from meshmend.run.supervisor.observations import StopSignal
from tests.simulators.clock import Clock
from tests.simulators.couriers import Mpirun, Net
from tests.simulators.faults import Fault, strike
from tests.simulators.hosts import Agent, Host, Line
from tests.simulators.ledger import Ledger, truths
from tests.simulators.workers import Worker

if TYPE_CHECKING:
    from tests.simulators.supervisor import Launcher


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run, and what befalls it. Everything else follows from the seed."""

    policy: str = "replace"
    workers: int = 3
    spares: int = 0
    hosts: int = 1
    """The first one is the launcher's, unless `apart`."""
    apart: bool = False
    least: int = 1
    jobs: int = 1
    """Jobs that the script has one after another, each of so many steps."""
    steps: int = 4
    lanes: int = 4
    sums: int = 1
    """Sums of a step."""
    in_place: bool = False
    """Whether the state changes with each sum, as PyTorch's objects do: within a step, there is none to save."""
    every: int = 2
    """Steps between two checkpoints."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    load: float = 0.3
    """Seconds that a script takes to open its job, couriers to come up, a lane to be computed, a checkpoint to be
    written, a process to end, and a script to end after its last step."""
    open: float = 0.2
    lane: float = 0.01
    save: float = 0.05
    exit: float = 0.02
    tail: float = 0.02
    tail_status: int = 0
    raising: tuple[int, ...] = ()
    """Ranks whose script raises an exception in every lane from step `raises_in` on."""
    raises_in: int = 2

    def __repr__(self) -> str:
        changed = [(name, value) for name, value in vars(self).items() if value != getattr(Case, name)]
        return f"Case({', '.join(f'{name}={value!r}' for name, value in changed)})"


class Model:
    """Everything but the supervisor."""

    def __init__(self, case: Case) -> None:
        self.case, self.clock, self.dice = case, Clock(), random.Random(case.seed)
        self.ledger = Ledger(truths(case.jobs, case.steps, case.lanes, case.sums))
        self.leavers_look_dead = self.dice.random() < 0.5
        self.hosts = {f"h{n}": Host(self, f"h{n}", here=n == 0 and not case.apart) for n in range(case.hosts)}
        self.added: list[Place] = []
        """Hosts that were added and have had an agent: they are in the run's `run.json`, which other launchers read."""
        self.side = self.sides = 0
        """The launcher's side of the network, and the last one that came apart."""
        self.mpiruns: list[Mpirun] = []
        self.lines: list[Line] = []
        self.net = Net(self)
        self.launcher: Launcher | None = None
        self.attempt = 0
        """The last one that was begun: it is in the run's events, which an attached launcher reads."""
        self.halt: tuple[HaltReason, int] | None = None
        """Why the run is being halted and who writes the checkpoint: in its events too."""
        self.finish: Finish | None = None
        self.launcher_state: RunState | None = None
        """That of the last launcher, at the end."""
        self.raised_after_job = False
        self.moves = self.turns = 0
        self.did: Counter[type] = Counter()
        self.last_fault = 0.0
        self.trace: list[tuple[object, ...]] = []
        self._faults: dict[int, list[Fault]] = {}
        for fault in case.faults:
            self._faults.setdefault(fault.at, []).append(fault)
        self._processes = 1000

    def new_process(self) -> int:
        """A number that no other process has."""
        self._processes += 1
        return self._processes

    def note(self, *what: object) -> None:
        """Keep a line of the trace."""
        self.trace.append((self.clock.now, self.moves, *what))

    def story(self) -> str:
        """The end of the trace, and the case in a form that can be pasted into a test."""
        lines = [f"{when:9.4f} {moves:4d}  {' '.join(map(str, what))}" for when, moves, *what in self.trace[-60:]]
        return "\n".join([*lines, f"simulate({self.case!r})"])

    def moved(self) -> None:
        """Something got further: a point where a fault can strike."""
        self.moves += 1
        for fault in self._faults.pop(self.moves, ()):
            self.last_fault = max(self.last_fault, self.clock.now + fault.after)
            if fault.after:
                self.clock.after(fault.after, strike, self, fault)
            else:
                strike(self, fault)

    @property
    def pending(self) -> bool:
        """Whether some fault may still strike."""
        return self.clock.now < self.last_fault

    def changed(self) -> None:
        """Something changed that agents can see."""
        if self.launcher is not None:
            self.launcher.nudge()

    @property
    def is_minority(self) -> bool:
        """Whether the launcher stops its side because the other one is larger."""
        return self.launcher is not None and isinstance(self.launcher.state.halt_reason, (Minority, WrongSide))

    def reaches(self, host: Host) -> bool:
        """Whether the launcher's side of the network is also the host's."""
        return host.side == self.side

    def block(self, seconds: float) -> None:
        """The launcher waits for an agent that does not answer."""
        if self.launcher is not None:
            self.launcher.blocked += seconds

    def worker(self, rank: int) -> Worker | None:
        """The worker that is in a rank now."""
        return next((host.segments[rank] for host in self.hosts.values() if rank in host.segments), None)

    @property
    def worlds(self) -> tuple[int, int]:
        """The world at work and the one that is being made ready; 0: none."""
        if self.launcher is None:
            return 0, 0
        state = self.launcher.state
        return state.world.number if state.world else 0, state.next.number if state.next else 0

    def mpirun(self, world: int) -> Mpirun | None:
        """The one of the present launcher."""
        return next((mpirun for mpirun in reversed(self.mpiruns) if mpirun.number == world), None)

    def kill_launcher(self) -> None:
        """All that it started here ends with it; workers live."""
        if self.launcher is None:
            return
        launcher, self.launcher = self.launcher, None
        launcher.alive = False
        for mpirun in self.mpiruns:
            mpirun.die()
        for line in launcher.lines:
            line.drop()
        for host in self.hosts.values():
            if host.here:
                for agent in host.agents:
                    agent.die()

    def stop_launcher(self, seconds: float) -> None:
        """SIGSTOP: it decides nothing, no agent hears from it, and the one in it does not look."""
        launcher = self.launcher
        if launcher is None:
            return
        launcher.stopped_until = self.clock.now + seconds
        for host in self.hosts.values():
            for agent in host.agents:
                if host.here:
                    agent.stop(seconds)
                else:
                    self.clock.after(AGENT_ALONE, self._unheard, launcher, agent)

    def _unheard(self, launcher: Launcher, agent: Agent) -> None:
        if launcher is self.launcher and launcher.stopped_until > self.clock.now:
            agent.die()

    def attach(self) -> None:
        """Another launcher takes over, unless the run is over."""
        from tests.simulators.supervisor import Launcher  # the two need each other

        if self.launcher is None and self.finish is None:
            self.launcher = Launcher(self, attached=True)

    def add(self, number: int, workers: int) -> None:
        """Somebody adds a host: it is up, and the launcher is told of it."""
        name = f"h{number}"
        if number >= self.case.hosts and name not in self.hosts:
            self.hosts[name] = Host(self, name, here=False)
        if self.launcher is not None:
            self.launcher.pool.invite(Place(name, workers))
            self.launcher.nudge()

    @property
    def places(self) -> list[str]:
        """The host of each rank, as a launcher that begins now has to know it."""
        return [*spread(self.case), *(place.name for place in self.added for _ in range(place.slots))]

    def signal(self) -> None:
        """SIGTERM."""
        if self.launcher is not None:
            self.launcher.signalled = StopSignal.TERMINATE
            self.launcher.nudge()

    def left_over(self) -> list[str]:
        """What still lives."""
        workers = [f"worker {w.rank}" for host in self.hosts.values() for w in host.processes if w.alive]
        couriers = [f"courier {c.rank} of {m.number}" for m in self.mpiruns for c in m.couriers if c.alive]
        return workers + couriers + [f"mpirun {m.number}" for m in self.mpiruns if m.alive]


def spread(case: Case) -> Sequence[str]:
    """The host of each rank, in blocks."""
    ranks = case.workers + case.spares
    return [f"h{rank * case.hosts // ranks}" for rank in range(ranks)]
