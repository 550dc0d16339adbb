"""What can go wrong, as data. A fault strikes at a point of a run (a number of moves) and so many seconds after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from meshmend.base.clocks import AGENT_ALONE
from meshmend.base.status import DONE, FAILED
from tests.simulators.workers import Mode

if TYPE_CHECKING:
    from tests.simulators.couriers import Courier, Mpirun
    from tests.simulators.hosts import Agent, Host
    from tests.simulators.model import Model


class Kind(Enum):
    KILL = auto()
    EXIT = auto()
    """The script ends with status 0, in the middle."""
    RAISE = auto()
    HANG = auto()
    STOP = auto()
    SLOW = auto()
    """It pauses, and continues."""
    COURIER = auto()
    """Its courier alone dies."""
    COURIER_STOP = auto()
    """It is stopped, for a while or until it is killed."""
    MPIRUN = auto()
    MPIRUN_STOP = auto()
    """It is stopped, for a while or until it is killed: meanwhile, nobody is told of deaths."""
    NEXT_MPIRUN = auto()
    """The one that is being made ready."""
    STALL = auto()
    """For a while, couriers that are started on a host do not come up."""
    FULL = auto()
    """For a while, no worker can be started on a host: its shared memory or its process table is full."""
    AGENT = auto()
    HOST = auto()
    """A host dies; it comes back empty, or never."""
    FREEZE = auto()
    """All of a host stands still for a while, and continues: a virtual machine that is moved."""
    CUT = auto()
    """Both networks to a host break, and heal, or never do."""
    CUT_MPI = auto()
    """Only mpirun's network does: agents answer."""
    LAUNCHER = auto()
    """The launcher is killed, and another one attaches, or never does."""
    LAUNCHER_STOP = auto()
    """The launcher is stopped for a while, with the agent in it: no agent hears from it."""
    SIGNAL = auto()
    AGENT_STOP = auto()
    """It is stopped, for a while or for ever: its line stays open, and says nothing more."""
    ADD = auto()
    """Nothing that fails: somebody adds the host of that number, with as many workers as it `lasts`."""


ON_RANKS = (Kind.KILL, Kind.EXIT, Kind.RAISE, Kind.HANG, Kind.STOP, Kind.SLOW, Kind.COURIER, Kind.COURIER_STOP)
ON_HOSTS = (
    Kind.STALL, Kind.FULL, Kind.AGENT, Kind.AGENT_STOP, Kind.HOST, Kind.FREEZE, Kind.CUT, Kind.CUT_MPI,
)  # fmt: skip


SIMULATED = {
    "kill": Kind.KILL,
    "hang": Kind.STOP,
    "slow": Kind.SLOW,
    "spin": Kind.HANG,
    "sleep": Kind.HANG,
    "raise": Kind.RAISE,
    "exit": Kind.EXIT,
    "courier": Kind.COURIER,
    "courier-stop": Kind.COURIER_STOP,
    "mpirun": Kind.MPIRUN,
    "mpirun-stop": Kind.MPIRUN_STOP,
    "agent": Kind.AGENT,
    "launcher": Kind.LAUNCHER,
    "term": Kind.SIGNAL,
}
"""The kinds of `job/faults`, and what each is here."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    at: int
    """After so many moves of the run."""
    target: int = 0
    """The rank, or the number of the host."""
    after: float = 0.0
    """Seconds after that."""
    lasts: float = 0.0
    """Until it is over; 0: never."""

    def __repr__(self) -> str:
        rest = [f"target={self.target}"] if self.kind in (*ON_RANKS, *ON_HOSTS, Kind.ADD) else []
        rest += [f"{name}={value}" for name, value in (("after", self.after), ("lasts", self.lasts)) if value]
        return f"Fault({', '.join([f'Kind.{self.kind.name}', str(self.at), *rest])})"


def strike(model: Model, fault: Fault) -> None:
    """Bring it about."""
    model.note("FAULT", fault)
    model.last_fault = model.clock.now + (fault.lasts if fault.kind is not Kind.ADD else 0.0)
    if fault.kind in ON_RANKS:
        _strike_rank(model, fault)
    elif fault.kind in ON_HOSTS:
        if fault.target < len(model.hosts):
            _strike_host(model, fault, list(model.hosts.values())[fault.target])
    elif fault.kind is Kind.ADD:
        model.add(fault.target, int(fault.lasts))
    elif fault.kind is Kind.LAUNCHER:
        model.kill_launcher()
        if fault.lasts:
            model.clock.after(fault.lasts, model.attach)
    elif fault.kind is Kind.LAUNCHER_STOP:
        model.stop_launcher(fault.lasts)
    elif fault.kind is Kind.SIGNAL:
        model.signal()
    else:
        current, ready = model.worlds
        world = ready if fault.kind is Kind.NEXT_MPIRUN else current
        mpirun = model.mpirun(world)
        if mpirun is not None and fault.kind is Kind.MPIRUN_STOP:
            mpirun.stop()
            if fault.lasts:
                model.clock.after(fault.lasts, mpirun.continue_)
        elif mpirun is not None:
            mpirun.die()


def _strike_rank(model: Model, fault: Fault) -> None:
    worker = model.worker(fault.target)
    if worker is None or worker.exiting:
        return
    match fault.kind:
        case Kind.KILL:
            worker.kill()
        case Kind.EXIT:
            worker.left = True
            worker.exit(DONE)
        case Kind.RAISE:
            worker.raised = True
            model.raised_after_job = model.raised_after_job or (
                worker.step >= model.case.steps and worker.job == model.case.jobs
            )
            worker.exit(FAILED)
        case Kind.HANG if worker.saving:
            worker.pause(Mode.PAUSES, 30.0)  # nobody can tell this from a slow disk; a second signal would end it
        case Kind.HANG:
            worker.pause(Mode.HANGS if worker.wire else Mode.STOPPED)
        case Kind.STOP:
            worker.pause(Mode.STOPPED)
        case Kind.SLOW:
            worker.pause(Mode.PAUSES, fault.lasts or 1.0)
        case Kind.COURIER:
            if worker.courier is not None:
                worker.courier.die()
        case Kind.COURIER_STOP:
            if worker.courier is not None:
                worker.courier.stop(fault.lasts)


def _strike_host(model: Model, fault: Fault, host: Host) -> None:
    match fault.kind:
        case Kind.STALL:
            host.stalled_until = model.clock.now + (fault.lasts or 1e9)
        case Kind.FULL:
            host.full_until = model.clock.now + (fault.lasts or 1e9)
        case Kind.AGENT:
            for agent in list(host.agents):
                agent.die()
        case Kind.AGENT_STOP if not host.here:
            for agent in list(host.agents):
                agent.stop(fault.lasts)
            model.changed()
        case Kind.HOST:
            host.die()
            for mpirun in model.mpiruns:
                if host.name in mpirun.daemons and mpirun.alive and model.dice.random() < 0.5:
                    model.clock.after(model.dice.uniform(0.1, 6.0), mpirun.die)
            if fault.lasts:
                model.clock.after(fault.lasts, _come_back, model, host)
        case Kind.FREEZE:
            host.freeze(fault.lasts)
        case Kind.CUT | Kind.CUT_MPI:
            cut(model, [host], lines=fault.kind is Kind.CUT)
            if fault.lasts:
                model.clock.after(fault.lasts, heal, model, [host])


def _come_back(model: Model, host: Host) -> None:
    host.up = True
    model.changed()


def cut(model: Model, hosts: Sequence[Host], *, lines: bool) -> None:
    """Break the network around some hosts, which still reach each other."""
    model.sides += 1
    dice, clock = model.dice, model.clock
    for host in hosts:
        host.side = model.sides
        host.cuts += 1
        if lines:
            host.line = False
            for agent in host.agents:
                clock.after(AGENT_ALONE, _alone, host, agent, host.cuts)
    for mpirun in model.mpiruns:
        crossing = {host.name for host in hosts} & mpirun.daemons.keys()
        if not mpirun.alive or not crossing:
            continue
        for one in mpirun.couriers:
            for other in mpirun.couriers:
                if one.host.side != other.host.side:
                    clock.after(dice.uniform(0.3, 8.0), _notice, one, other)
        for name in sorted(crossing):
            clock.after(dice.uniform(2.0, 15.0), _daemon_alone, model, mpirun, name)
        if dice.random() < 0.5:
            clock.after(dice.uniform(2.0, 12.0), _mpirun_alone, model, mpirun, sorted(crossing))
    model.changed()


def heal(model: Model, hosts: Sequence[Host]) -> None:
    """Mend it; some connections are reset."""
    for host in hosts:
        host.side, host.line = 0, True
    for mpirun in model.mpiruns:
        for one in mpirun.couriers:
            for other in mpirun.couriers:
                if (one.host in hosts) != (other.host in hosts) and model.dice.random() < 0.5:
                    one.believes_dead.add(other)
            one.wake()
    model.changed()


def _notice(one: Courier, other: Courier) -> None:
    if one.host.side != other.host.side:
        one.believes_dead.add(other)
        one.wake()


def _daemon_alone(model: Model, mpirun: Mpirun, name: str) -> None:
    if model.hosts[name].side != model.side:
        mpirun.end_daemon(name)


def _mpirun_alone(model: Model, mpirun: Mpirun, names: Sequence[str]) -> None:
    if any(model.hosts[name].side != model.side for name in names):
        mpirun.die()


def _alone(host: Host, agent: Agent, cuts: int) -> None:
    if not host.line and host.cuts == cuts:
        agent.die()
