"""Stories for the supervisor: what agents see is told in words, a clock of our own runs, and orders are collected.

    run = training("a a b")                 # three workers on two hosts train
    run.dies(2)                             # what the agents see next
    assert run.turn().kinds == [NoteDeath, Say]
    run.turn(after=1.5)                     # a second later, its replacement is started

Agents obey: what is started has a process, what is killed stays until the story says that it `dies`, couriers come up
when the story says so. Nothing is patched: everything goes through `decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from meshmend.base.clocks import HOST_QUIET
from meshmend.run.supervisor import POLICIES, Phase, RunConfig, RunState, decide
from meshmend.run.supervisor.actions import (
    Action,
    ClearCouriers,
    EnterWorld,
    Finish,
    Kill,
    KillWorld,
    OpenWorld,
    Release,
    Remove,
    Say,
    Start,
)
from meshmend.run.supervisor.messages import Message
from meshmend.run.supervisor.observations import (
    Cause,
    ChangedHost,
    CourierState,
    HostChange,
    Observations,
    RankSeen,
    WorkerError,
)

POLL = 0.02
KILLED = -9
NO_ROOM = "no room in /dev/shm"
A = TypeVar("A")


class Orders(list[Action]):
    """What the supervisor ordered, in one turn or in several."""

    def of(self, kind: type[A]) -> list[A]:
        """The orders of one kind."""
        return [action for action in self if isinstance(action, kind)]

    @property
    def kinds(self) -> list[type]:
        return [type(action) for action in self]

    @property
    def said(self) -> list[Message]:
        return [action.message for action in self.of(Say)]

    @property
    def started(self) -> list[int]:
        return [action.rank for action in self.of(Start)]

    @property
    def killed(self) -> list[tuple[int, Cause]]:
        return [(action.rank, action.cause) for action in self.of(Kill)]

    @property
    def opened(self) -> list[list[int]]:
        """The ranks of each world that was opened."""
        return [sorted(rank for ranks in world.members.values() for rank in ranks) for world in self.of(OpenWorld)]

    @property
    def entered(self) -> list[int]:
        return [action.number for action in self.of(EnterWorld)]


@dataclass
class Run:
    """A run, as the supervisor and its agents see it."""

    state: RunState
    now: float = 100.0
    seen: dict[int, RankSeen] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    """Worlds whose mpirun has ended."""
    reachable: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    full: set[int] = field(default_factory=set)
    """Ranks whose worker cannot be started, for want of room."""
    sure: bool = True
    orders: Orders = field(default_factory=Orders)
    """Everything that was ordered so far."""
    times: list[tuple[float, Action]] = field(default_factory=list)
    finish: Finish | None = None
    on_open: Callable[[OpenWorld], None] = lambda _: None
    """What befalls every world that is opened."""
    _changes: list[ChangedHost] = field(default_factory=list)
    _processes: int = 1000

    def turn(self, after: float = POLL, **seen: Any) -> Orders:
        """One turn, so many seconds after the last one, with these observations besides what the agents see."""
        self.now += after
        ranks = {n: rank for n, rank in self.seen.items() if self.state.config.hosts[n] in self.reachable}
        changes, self._changes = tuple(self._changes), []
        observed = Observations(
            ranks=ranks, ended_worlds=frozenset(self.ended), reachable=frozenset(self.reachable),
            lost=frozenset(self.lost), changes=changes, **{"hosts_known": self.sure, **seen},
        )  # fmt: skip
        done = Orders(decide(self.state, observed, self.now))
        for action in done:
            self._obey(action)
        self.orders += done
        self.times += [(self.now, action) for action in done]
        return done

    def cut_off(self, *hosts: str) -> Orders:
        """The probe did not reach these hosts, and their agents are heard from all the same."""
        return Orders([*self.turn(unreachable=frozenset(hosts)), *self.turns(HOST_QUIET + 2 * POLL)])

    def turns(self, seconds: float, every: float = POLL) -> Orders:
        """Turns for so long, or until the run is halted or finished."""
        done, end = Orders(), self.now + seconds
        while self.now + every <= end + 1e-9 and self.state.halt_reason is None and self.finish is None:
            done += self.turn(every)
        return done

    def _obey(self, action: Action) -> None:
        match action:
            case Start(rank=rank) if rank in self.full:
                self.seen[rank] = replace(self.seen.get(rank, RankSeen(rank)), unstarted=NO_ROOM)
            case Start(rank=rank):
                self._processes += 1
                self.seen[rank] = RankSeen(rank, process=self._processes)
            case OpenWorld():
                self.on_open(action)
            case EnterWorld(number=number):
                self.see(world=number)
            case ClearCouriers():
                self.see(courier=CourierState.NONE, stuck=False)
            case KillWorld(number=number):
                self.ended.discard(number)
            case Release(rank=rank):
                self.see(rank, over=True)
            case Remove(hosts=hosts):
                for rank in self._on(*hosts):
                    self.seen.pop(rank, None)
            case Finish():
                self.finish = action

    # ── what is seen next ──

    def see(self, *ranks: int, **values: Any) -> Run:
        """How these workers are; without ranks, all that live."""
        for rank in ranks or [n for n, one in self.seen.items() if one.status is None]:
            self.seen[rank] = replace(self.seen[rank], **values)
        return self

    def opens(self, *ranks: int) -> Run:
        """These workers have opened their job."""
        return self.see(*ranks, ready=True)

    def comes_up(self, *ranks: int) -> Run:
        """The couriers of the newest world are there, for these ranks or for all its members."""
        world = self.state.next or self.state.world
        assert world is not None
        return self.see(*(ranks or world.members), standby=world.number, courier=CourierState.ALIVE)

    def trains(self, step: int) -> Run:
        """All members of the world are in this step."""
        world = self.state.world
        assert world is not None
        members = [n for n in world.members if self.seen[n].status is None]
        return self.see(*members, active=True, agreed=world.number, step=step, summed_world=world.number)

    def dies(self, *ranks: int, status: int = KILLED, cause: Cause = Cause.NONE, error: str = "") -> Run:
        """These workers end, and their couriers with them."""
        for rank in ranks:
            raised = WorkerError(self.seen[rank].step, error, f"…\n{error}", mistake=False) if error else None
            self.see(rank, status=status, cause=cause, error=raised, courier=CourierState.NONE)
        return self

    def loses(self, *hosts: str) -> Run:
        """These hosts do not answer any more, and are given up."""
        return self._change(HostChange.LOST, hosts)

    def replaces_agent(self, *hosts: str, attempt: int = 0) -> Run:
        """The agents of these hosts were lost, and others are there, which have found workers of this attempt."""
        return self._change(HostChange.AGENT_REPLACED, hosts, attempt)

    def finds(self, *hosts: str, attempt: int = 0) -> Run:
        """These lost hosts answer again, with old workers of this attempt."""
        return self._change(HostChange.BACK, hosts, attempt)

    def _change(self, change: HostChange, hosts: Iterable[str], attempt: int = 0) -> Run:
        for host in hosts:
            self._changes.append(ChangedHost(host, change, attempt))
            (self.reachable.discard if change is HostChange.LOST else self.reachable.add)(host)
            (self.lost.add if change is HostChange.LOST else self.lost.discard)(host)
        return self

    def _on(self, *hosts: str) -> list[int]:
        return [rank for rank, host in enumerate(self.state.config.hosts) if host in hosts]

    # ── what has become of it ──

    @property
    def halting(self) -> Any:
        """Why the run is being halted, or None."""
        return self.state.halt_reason

    def when(self, kind: type) -> list[float]:
        """When orders of this kind were given."""
        return [time for time, action in self.times if isinstance(action, kind)]


def planned(
    hosts: str, policy: str = "replace", *, spares: int = 0, least: int = 1, here: str = "", attached: bool = False
) -> Run:
    """A run that has not begun; `hosts` names the host of each rank, and `here` those that need no probe."""
    config = RunConfig(
        hosts=hosts.split(), policy=POLICIES[policy], workers=len(hosts.split()) - spares, least=least,
        here=frozenset((here or hosts).split()),
    )  # fmt: skip
    state = RunState(config, phase=Phase.ATTACHING if attached else Phase.BEGINNING)
    return Run(state, reachable=set(hosts.split()))


def begun(hosts: str, policy: str = "replace", **options: Any) -> Run:
    """A run whose workers have opened their jobs, and whose first world was formed."""
    run = planned(hosts, policy, **options)
    run.turn()
    run.opens()
    run.turn()
    return run


def training(hosts: str, policy: str = "replace", *, step: int = 5, spares: int = 0, **options: Any) -> Run:
    """A run whose workers train; the last ones are spares."""
    run = begun(hosts, policy, spares=spares, **options)
    run.comes_up().trains(step)
    for rank in range(len(hosts.split()) - spares, len(hosts.split())):
        run.see(rank, active=False)
    run.turn()
    run.orders, run.times = Orders(), []
    return run
