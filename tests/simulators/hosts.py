"""Hosts, the agents on them, and the launcher's lines to these: what `run/agent` and `run/hosts` do, as events.

The pool of hosts is the real `run/hosts/pool.py`; only its agents are simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshmend.base.clocks import (
    AGENT_ALONE,
    BEAT,
    COURIER_LOOK,
    HOST_QUIET,
    HOST_SILENCE,
    ORPHAN,
    PROBE_REROUTE,
    PROBE_SILENCE,
    REPAIR,
)
from meshmend.base.status import DONE, HALTED
from meshmend.run.agent.messages import Command
from meshmend.run.hosts.pool import Pool
from meshmend.run.hosts.remote import Remote
from meshmend.run.supervisor.observations import MOVES, Cause, CourierState, RankSeen, WorkerError
from tests.simulators.ledger import Violation
from tests.simulators.workers import SIGKILL, Mode, Worker

if TYPE_CHECKING:
    from tests.simulators.couriers import Courier
    from tests.simulators.model import Model


class Host:
    """A machine with shared memory, workers, and a place in the network."""

    def __init__(self, model: Model, name: str, *, here: bool) -> None:
        self.model, self.name, self.here = model, name, here
        self.up = self.line = True
        """Whether it runs, and whether the launcher's lines to it work."""
        self.side = 0
        """Hosts on one side of mpirun's network reach each other."""
        self.cuts = 0
        self.stalled_until = 0.0
        """Couriers of worlds that are opened before do not come up here."""
        self.full_until = 0.0
        """Workers cannot be started here before."""
        self._frozen_until = 0.0
        self.segments: dict[int, Worker] = {}
        self.processes: list[Worker] = []
        """Every worker that was ever started here."""
        self.agents: list[Agent] = []

    def see_soon(self) -> None:
        """A process ended: agents wake up."""
        self.model.clock.after(self.model.dice.uniform(0.0, 0.004), self._see)

    def _see(self) -> None:
        for agent in self.agents:
            if agent.alive and not agent.stopped:
                agent.look()
        self.model.changed()

    @property
    def frozen(self) -> float:
        """For how many seconds everything here still stands still."""
        return max(0.0, self._frozen_until - self.model.clock.now)

    def freeze(self, seconds: float) -> None:
        """Everything here stands still for so long."""
        self._frozen_until = max(self._frozen_until, self.model.clock.now + seconds)
        for worker in self.processes:
            worker.pause(Mode.FROZEN, seconds)
        for mpirun in self.model.mpiruns:
            for courier in mpirun.couriers:
                if courier.host is self and courier.alive:
                    courier.stop(seconds)
        for agent in list(self.agents):
            agent.stop(seconds)

    def die(self) -> None:
        """Everything on it is gone, and nobody is told."""
        self.up = False
        for agent in self.agents:
            agent.alive = False
        self.agents.clear()
        for worker in self.processes:
            worker.alive, worker.exiting = False, True
        self.segments.clear()
        for mpirun in self.model.mpiruns:
            if self.name in mpirun.daemons:
                mpirun.daemons[self.name] = False
                for courier in mpirun.couriers:
                    if courier.host is self:
                        courier.die(self.model.dice.uniform(0.2, 6.0))


@dataclass
class Seat:
    """A worker, as an agent knows it."""

    worker: Worker
    child: bool
    status: int | None = None
    cause: Cause = Cause.NONE
    mourned: Courier | None = None


class Agent:
    """As `run/agent/agent.py`."""

    def __init__(self, model: Model, host: Host) -> None:
        self.model, self.host = model, host
        self.alive = True
        self.stopped = False
        self._stops = 0
        self.seats: dict[int, Seat] = {}
        self.unstarted: set[int] = set()
        self.attempt = 0
        """The latest that a command or a worker has shown."""
        host.agents.append(self)

    def do(self, command: str, attempt: int, **values: Any) -> None:
        """Carry out a command that was given in this attempt."""
        if attempt >= self.attempt or command in ("adopt", "remove"):
            self.attempt = max(self.attempt, attempt)
            getattr(self, command)(**values)

    def adopt(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            worker = self.host.segments.get(rank)
            if worker is not None:
                if worker.owner is not None and worker.owner is not self and worker.owner.alive:
                    worker.owner.die()
                worker.owner = self
                self.seats[rank] = Seat(worker, child=False)

    def start(self, rank: int, resume: str, passed: int) -> None:
        if rank not in self.seats:
            self.adopt((rank,))
            self.clear((rank,))
            if rank in self.seats:
                self._kill(self.seats[rank], Cause.REPLACED)
        for other in self.host.processes:
            if other.rank == rank and not other.exiting:
                raise Violation(f"worker {rank} was started while another one of this rank lives")
        self.unstarted.discard(rank)
        if self.model.clock.now < self.host.full_until:
            self.unstarted.add(rank)
            return
        worker = Worker(self.model, rank, self.host, self.attempt, resume, passed)
        worker.owner = self
        self.host.segments[rank] = worker
        self.host.processes.append(worker)
        self.seats[rank] = Seat(worker, child=True)

    def end(self, rank: int, cause: Cause) -> None:
        if rank in self.seats:
            self._kill(self.seats[rank], cause)

    def clear(self, only: tuple[int, ...] | None = None) -> None:
        for rank, seat in self.seats.items():
            if only is not None and rank not in only:
                continue
            worker = seat.worker
            if worker.daemon is not None and not self.host.here:
                worker.daemon.end_daemon(self.host.name)
            if worker.courier is not None:
                worker.courier.die()
            worker.courier, worker.daemon, worker.repairing = None, None, None

    def open(self, world: int) -> None:
        for seat in self.seats.values():
            seat.worker.opened = world

    def enter(self, world: int, fresh: bool, job: int, wanted: int) -> None:
        self.clear()
        for seat in self.seats.values():
            seat.worker.fresh, seat.worker.wanted = fresh, wanted
            seat.worker.world, seat.worker.world_job = world, job
        for mpirun in self.model.mpiruns:
            if mpirun.number == world:  # of whichever launcher: couriers know no other difference
                for courier in mpirun.couriers:
                    courier.wake()

    def release(self, rank: int, job: int) -> None:
        if rank not in self.seats:
            return
        worker = self.seats[rank].worker
        worker.released = job
        worker.poke()
        if worker.courier is not None:
            worker.courier.wake()

    def halt(self, writer: int) -> None:
        for seat in self._living():
            seat.worker.halt = 2 if seat.worker.rank == writer else 1
            seat.worker.poke()

    def remove(self) -> None:
        self.clear()
        for seat in self._living():
            self._kill(seat, Cause.RUN_ENDED)
        for rank, seat in self.seats.items():
            if self.host.segments.get(rank) is seat.worker:
                del self.host.segments[rank]
        self.seats.clear()
        self.unstarted.clear()
        if not self.host.segments:
            for mpirun in self.model.mpiruns:
                for courier in mpirun.couriers:
                    if courier.host is self.host:
                        courier.die()

    def stop(self, seconds: float = 0.0) -> None:
        """It is stopped, for so long or for ever: meanwhile it hears nothing, and its watchdog kills it in time."""
        self.stopped = True
        self._stops += 1
        if not self.host.here:
            self.model.clock.after(AGENT_ALONE, self._end_stopped, self._stops)
        if seconds:
            self.model.clock.after(seconds, self._continue, self._stops)

    def _end_stopped(self, stops: int) -> None:
        if self.stopped and stops == self._stops:
            self.die()

    def _continue(self, stops: int) -> None:
        if not self.alive or stops != self._stops:
            return
        self.stopped = False
        lines = [line for line in self.model.lines if line.agent is self]
        if lines and all(line.closed for line in lines):
            self.die()  # its launcher has called another agent
        self.host.see_soon()

    def die(self) -> None:
        """It is killed or ends; its workers live, and end by themselves when nobody comes for them."""
        if not self.alive:
            return
        self.alive = False
        self.model.note("agent ends", self.host.name)
        for seat in self.seats.values():
            self.model.clock.after(ORPHAN, self._orphaned, seat.worker)
        for line in self.model.lines:
            if line.agent is self and self.host.line:
                line.closed = True
        self.model.changed()

    def _orphaned(self, worker: Worker) -> None:
        if worker.owner is self and not worker.exiting:
            worker.halt = worker.halt or 1
            worker.poke()
            self.model.clock.after(30.0 + self.model.case.save, worker.exit, 1)

    def look(self) -> list[RankSeen]:
        for seat in self._living():
            worker = seat.worker
            if not worker.alive:
                word = worker.status if worker.status == HALTED else SIGKILL
                seat.status = worker.status if seat.child else DONE if worker.left else word
        for seat in self.seats.values():
            courier = seat.worker.courier
            unwanted = seat.status is not None and (seat.status != DONE or not seat.worker.over)
            if unwanted and courier is not seat.mourned:
                seat.mourned = courier
                if courier is not None:
                    courier.die()
        seen = {rank: self._view(seat) for rank, seat in self.seats.items()}
        self.attempt = max([self.attempt, *(one.attempt for one in seen.values())])
        for rank in self.unstarted:
            seen[rank] = replace(seen.get(rank, RankSeen(rank)), unstarted="no room")
        return list(seen.values())

    def _living(self) -> list[Seat]:
        return [seat for seat in self.seats.values() if seat.status is None]

    @staticmethod
    def _kill(seat: Seat, cause: Cause) -> None:
        if not seat.worker.exiting:
            seat.cause = cause
            seat.worker.kill()

    def _view(self, seat: Seat) -> RankSeen:
        worker, status = seat.worker, seat.status
        courier = worker.courier
        carried = CourierState.NONE if courier is None else CourierState.LOST
        if courier is not None and courier.alive:
            stopped = courier.stopped if courier.stopped is not None else courier.mpirun.stopped
            still = stopped is not None and self.model.clock.now - stopped > 2 * COURIER_LOOK
            carried = CourierState.STOPPED if still else CourierState.ALIVE
        raised = bool(status) and worker.raised
        return RankSeen(
            rank=worker.rank,
            process=worker.process,
            attempt=worker.attempt,
            status=status,
            cause=seat.cause if status is not None else Cause.NONE,
            error=WorkerError(worker.step, "ValueError", "", mistake=False) if raised else None,
            job=worker.job,
            ready=worker.ready,
            active=worker.memory.active,
            over=worker.over,
            left=worker.out,
            courier=carried,
            world=worker.world,
            opened=worker.opened,
            shrink=worker.shrink,
            standby=worker.standby,
            agreed=worker.agreed,
            still=worker.still if status is None else MOVES,
            step=worker.step,
            summed_world=worker.summed[0],
            summed_shrink=worker.summed[1],
            halts=bool(worker.halt),
            saving=worker.saving,
            exiting=status is None and carried is not CourierState.ALIVE and worker.exiting,
            stuck=worker.repairing is not None and self.model.clock.now - worker.repairing > REPAIR,
        )


class Knock:
    """A probe of mpirun's network."""

    def __init__(self, model: Model, host: Host) -> None:
        self.host, self.answer = host.name, None
        if host.up and host.side == model.side and not host.frozen:
            model.clock.after(0.01, self._answered, True)
        else:
            model.clock.after(model.dice.choice([PROBE_REROUTE, PROBE_SILENCE]), self._answered, False)

    def _answered(self, answer: bool) -> None:
        self.answer: bool | None = answer


class Line(Remote):
    """The launcher's line to an agent on another host: as `run/hosts/remote.py`."""

    def __init__(self, model: Model, host: Host) -> None:
        self.model, self.place, self.host = model, host, host.name
        self.called = self._heard = model.clock.now
        self.ready = self.closed = False
        self.first: Knock | None = None  # type: ignore[assignment]
        self.agent: Agent | None = None
        self.attempt = 0
        self.said: list[RankSeen] = []
        self.told = 0.0
        model.lines.append(self)
        model.clock.after(model.dice.uniform(0.1, 0.4), self._arrive)

    def _arrive(self) -> None:
        if self.closed:
            return
        if self.place.up and self.place.line and self.place.frozen:
            self.model.clock.after(self.place.frozen, self._arrive)
        elif self.place.up and self.place.line:
            self.agent = Agent(self.model, self.place)
            self.ready, self._heard = True, self.model.clock.now
            self.attempt = max([0, *(worker.attempt for worker in self.place.segments.values())])
            self.first = self.probe()
            self.model.changed()
        elif self.model.dice.random() < 0.5:
            self.closed = True  # no route; otherwise nobody answers

    @property
    def connected(self) -> bool:
        up = self.place.up and self.place.line and not self.closed
        return up and self.agent is not None and self.agent.alive and not self.agent.stopped

    @property
    def lost(self) -> bool:
        return self.closed or self._silence() > HOST_SILENCE

    @property
    def quiet(self) -> bool:
        return not self.closed and self._silence() > HOST_QUIET

    def _silence(self) -> float:
        if self.connected:
            self._heard = self.model.clock.now
        return self.model.clock.now - self._heard

    def probe(self) -> Knock:  # type: ignore[override]
        return Knock(self.model, self.place)

    def do(self, command: str, attempt: int, **values: Any) -> None:
        if self.closed:
            return
        if not self.connected:
            self.model.block(HOST_SILENCE)
            self.closed = True
            return
        assert self.agent is not None
        self.agent.do(command, attempt, **values)
        self.said, self.told = self.agent.look(), self.model.clock.now

    def act(self, command: Command) -> None:
        """What the pool itself asks for."""
        self.do(type(command).__name__.lower(), command.epoch.attempt)

    def look(self) -> list[RankSeen]:
        now = self.model.clock.now
        if self.connected:
            assert self.agent is not None
            views = self.agent.look()
            if views != self.said or now - self.told > BEAT:
                self.said, self.told = views, now
        return self.said

    def close(self) -> None:
        self.drop()

    def why(self) -> str:
        return "it does not answer"

    def drop(self) -> None:
        self.closed = True
        if self.agent is not None and self.agent.alive and not self.agent.stopped:
            if self.place.up and self.place.line:
                self.agent.die()
            else:
                self.model.clock.after(AGENT_ALONE, self.agent.die)


class SimulatedPool(Pool):
    """The real pool with simulated agents."""

    def __init__(self, model: Model) -> None:
        super().__init__(spec=None)  # type: ignore[arg-type]
        self.model = model

    def _agent(self, host: str) -> Any:
        place = self.model.hosts[host]
        return Agent(self.model, place) if place.here else Line(self.model, place)

    def call_all(self) -> None:
        """As `Pool.open`, without waiting."""
        for host in [*self.model.hosts][: self.model.case.hosts] + [place.name for place in self.model.added]:
            self.agents[host] = self._agent(host)

    @property
    def settled(self) -> bool:
        """Whether every agent has spoken, or will not."""
        lines = [agent for agent in self.agents.values() if isinstance(agent, Line)]
        return all(line.ready or line.closed for line in lines)
