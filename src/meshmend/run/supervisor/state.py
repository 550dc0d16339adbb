"""The state of a run, and one turn of deciding about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from meshmend.run.supervisor.actions import Action, Kill, Release, Say, Start
from meshmend.run.supervisor.messages import HaltReason, Message, WorldReason
from meshmend.run.supervisor.observations import Cause, Observations
from meshmend.run.supervisor.patience import Backoff, HangJudge
from meshmend.run.supervisor.ranks import Rank, RankState, Sign
from meshmend.telemetry.epoch import Epoch

RESTARTS = 3
"""How often to restart a worker that ends before it completes a step, or a run that gets no further."""


class Phase(Enum):
    """What the run as a whole is doing."""

    BEGINNING = auto()
    ATTACHING = auto()
    """The previous launcher was killed: its workers are being taken over."""
    RUNNING = auto()
    RESTARTING = auto()
    """Everything is being killed, to restart from the last checkpoint."""
    HALTING = auto()
    """A checkpoint is being written, and then all workers exit."""
    FINISHED = auto()


class Policy(Protocol):
    """What follows a failure (`--on-failure`); see policies.py."""

    @property
    def repairs(self) -> bool:
        """Whether couriers repair their group by themselves after a death."""

    def after_death(self, turn: Turn, rank: Rank) -> None:
        """Handle the death of a worker that was still needed."""

    def after_mpirun(self, turn: Turn, reason: WorldReason) -> None:
        """Handle the loss of mpirun or its couriers (gone or stopped); the workers are alive."""

    def after_hosts(self, turn: Turn, reason: WorldReason) -> None:
        """Handle the loss of hosts; the remaining members are a majority."""

    def awaits(self, rank: Rank) -> bool:
        """Whether a new world waits until this worker is ready."""

    @property
    def takes_hosts_back(self) -> bool:
        """Whether to start workers on a host that comes back."""

    @property
    def needs_spares(self) -> bool:
        """Whether this policy makes sense only with spares."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of the run that decisions depend on."""

    hosts: Sequence[str]
    """The host of each rank; a host that is added later has the ranks after the last."""
    policy: Policy
    workers: int
    """How many workers take part in sums; the other ranks are spares."""
    least: int = 1
    """With fewer workers than this, the run is halted with a checkpoint."""
    here: frozenset[str] = frozenset()
    """Hosts that need not be probed: the launcher's own."""


@dataclass
class World:
    """One mpirun, and the workers it carries sums for."""

    number: int
    members: Mapping[int, int]
    """The ranks, and the process of each: a worker that is started later in the same rank is not a member."""
    reason: WorldReason
    opened: float
    came_up: float | None = None
    """When all its couriers had been seen."""

    def has(self, rank: Rank) -> bool:
        """Whether the present worker of a rank is a member."""
        return self.members.get(rank.number) == rank.seen.process


@dataclass
class RunState:
    """Everything the supervisor remembers. Only `decide` changes it, and it can be copied."""

    config: RunConfig
    attempt: int = 0
    resume: str = ""
    """The checkpoint that this attempt began with."""
    phase: Phase = Phase.BEGINNING
    ranks: dict[int, Rank] = field(default_factory=dict)
    world: World | None = None
    next: World | None = None
    """The world that is being prepared."""
    worlds: int = 0
    """The number of the last world."""
    job: int = 1
    """Which job of the script the run is in: it moves on to the next when all live workers have left this one."""
    over_since: float | None = None
    """When the last step of this job was first seen to be done."""
    fresh: bool = True
    """No worker has had the state of this job yet, in this attempt; or all that had it died before they did a step."""
    moved: bool = False
    """A step of this job was done in this attempt, or may have been where this launcher did not look."""
    stepped: bool = False
    """The ledger had steps of this attempt when this launcher attached to the run."""
    summed: tuple[int, int] = (0, 0)
    """The world and the shrink of the last sum of this job that any worker was seen to have, also one that is dead."""
    begun: bool = False
    """All workers that this job began with, in this attempt, have completed a step, except those that were killed."""
    cleared: float = 0.0
    """When agents were told to end all couriers."""
    reason: WorldReason | None = None
    """Why the next world will be formed, if that is already known."""
    unsure: set[int] = field(default_factory=set)
    """Unreachable members, until the others have agreed to continue without them."""
    eager: bool = True
    """The next world may be opened before its newcomers are ready: the last one opened that way was used."""
    unready: int = 0
    """Worlds for newcomers in a row that did not come up."""
    prepare_at: float = 0.0
    """When the next one may be opened."""
    exiting_since: float | None = None
    """The time since which some worker has been exiting."""
    hangs: HangJudge = field(default_factory=HangJudge)
    backoff: Backoff = field(default_factory=Backoff)
    halt_reason: HaltReason | None = None
    halted: float | None = None
    """When workers were told to stop."""
    halted_fresh: bool = False
    """No worker had the state of this job when the halt began; one may have had it before it heard of the halt."""
    writer: int | None = None
    """The rank that writes the last checkpoint; -1: no worker can; None before that is decided."""
    restarting: set[int] = field(default_factory=set)
    """During a restart: the ranks that held the state before they were killed."""
    found: bool = False
    """During a restart: whether the checkpoint to start from is known."""
    stale: int = 0
    """Attempts in a row that started from the same checkpoint."""
    probing: bool = False
    cut_off: frozenset[str] = frozenset()
    """Hosts that mpirun's network did not reach, until it is known whether their agents still answer."""
    cut_off_at: float = 0.0
    new_hosts: list[tuple[str, int]] = field(default_factory=list)
    """Hosts that were added, and their workers, until these can join others that train."""
    expelling: set[str] = field(default_factory=set)
    expelled: dict[str, bool] = field(default_factory=dict)

    @property
    def epoch(self) -> Epoch:
        """The membership of the present world, as far as its members have been seen."""
        world = self.world.number if self.world is not None else 0
        shrinks = [rank.raw.shrink for rank in self.ranks.values() if world and rank.raw.world == world]
        return Epoch(self.attempt, world, max(shrinks, default=0))

    def living(self) -> list[Rank]:
        """Ranks whose worker has not ended."""
        return [rank for rank in self.ranks.values() if rank.alive]

    def present(self) -> list[Rank]:
        """Ranks whose worker may be in a new world: it has not begun to exit."""
        return [rank for rank in self.living() if rank.state is not RankState.EXITING]

    def active(self) -> list[Rank]:
        """Ranks that hold the state."""
        return [rank for rank in self.living() if rank.seen.active]

    def missing(self) -> list[Rank]:
        """Ranks whose worker could not be started; the start will be retried."""
        return [rank for rank in self.ranks.values() if rank.state is RankState.DUE and rank.misses]

    def left_out(self, rank: Rank) -> bool:
        """Whether others have summed in a later group, a smaller one, that this worker was not in.

        It may have another total of the same step, so it must neither join the others again nor record that step.
        """
        seen = rank.seen
        return self.summed > max((seen.world, seen.shrink), (seen.summed_world, seen.summed_shrink))

    def only_left_out(self, ranks: Iterable[Rank]) -> bool:
        """Whether there are some among these that hold the state, and others have summed without all of them."""
        holders = [rank for rank in ranks if rank.seen.active]
        return bool(holders) and all(map(self.left_out, holders))

    def over(self) -> bool:
        """Whether the job's last step is done: a rank is over only when all members have announced that they leave."""
        return any(rank.seen.over for rank in self.ranks.values())

    def on(self, hosts: Iterable[str]) -> list[Rank]:
        """The ranks of these hosts."""
        wanted = set(hosts)
        return [rank for rank in self.ranks.values() if rank.host in wanted]


@dataclass
class Turn:
    """One turn: what was seen, when, and what is to be done about it."""

    run: RunState
    seen: Observations
    now: float
    actions: list[Action] = field(default_factory=list)

    def do(self, *actions: Action) -> None:
        """Append actions."""
        self.actions += actions

    def say(self, message: Message) -> None:
        """Print a message to the user."""
        self.do(Say(message))

    def start(self, rank: Rank) -> None:
        """Have a worker started; only the first workers of an attempt start from its checkpoint."""
        self.order_start(rank)
        rank.started()

    def order_start(self, rank: Rank) -> None:
        """Order the start of a worker; again if the agent that got the first order is gone."""
        resume = "" if rank.joining else self.run.resume
        self.do(Start(rank.number, rank.host, resume, passed=self.run.job - 1))
        rank.ordered = self.now

    def release(self, rank: Rank, job: int) -> None:
        """Tell a worker to leave this job, once."""
        if (rank.released is None or rank.released_from < job) and rank.state is not RankState.EXITING:
            self.do(Release(rank.number, rank.host, job))
            rank.released, rank.released_from = self.now, job

    def kill(self, rank: Rank, cause: Cause) -> None:
        """Have a worker killed, once."""
        if rank.state is not RankState.EXITING:
            self.do(Kill(rank.number, rank.host, cause))
            rank.killed = cause
            rank.apply(Sign.KILL)
