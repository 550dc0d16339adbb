"""Bugs of the launcher (docs/robustness.md) as schedules; most with a mutant that brings the bug back, to be caught.

`words` is how the line of docs/robustness.md begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from meshmend.base.clocks import ORPHAN
from meshmend.base.status import DONE, FAILED, HALTED
from meshmend.job.protocol import MemberState, has_majority, recovery
from meshmend.run.supervisor import actions, deaths, decide, halting, hosts, jobs, worlds
from meshmend.run.supervisor.messages import Signalled
from meshmend.run.supervisor.observations import CourierState, Observations, Stillness
from meshmend.run.supervisor.patience import HangJudge
from meshmend.run.supervisor.ranks import Rank, RankState
from meshmend.run.supervisor.state import Phase, RunState, Turn, World
from tests.simulators import hosts as simulated_hosts
from tests.simulators import supervisor
from tests.simulators.couriers import Courier
from tests.simulators.faults import Fault, Kind
from tests.simulators.hosts import Agent
from tests.simulators.ledger import Violation
from tests.simulators.model import Case
from tests.simulators.schedules import check
from tests.simulators.supervisor import simulate
from tests.simulators.workers import Worker

decide_module = __import__("meshmend.run.supervisor.decide", fromlist=["decide"])
Mutant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Known:
    """A bug: the cases that showed it, how they must end, and how to bring it back."""

    words: str
    cases: tuple[Case, ...]
    status: int = DONE
    or_status: int | None = None
    worlds: int = 6
    """The most worlds that may be opened."""
    seconds: float = 3000.0
    """The most simulated seconds."""
    joined: float = 3000.0
    """The most simulated seconds from the last failure until the last world is entered."""
    mutant: Mutant | None = None

    def wrong(self) -> str:
        """What goes wrong, in the first case where something does."""
        for case in self.cases:
            try:
                outcome = simulate(case)
                check(outcome)
            except Violation as error:
                return str(error)
            opened, notes = outcome.did[actions.OpenWorld], outcome.model.trace
            entered = max((when for when, _, _, what, *_ in notes if isinstance(what, actions.EnterWorld)), default=0.0)
            if (
                outcome.status not in (self.status, self.or_status)
                or opened > self.worlds
                or outcome.model.clock.now > self.seconds
                or entered > outcome.model.last_fault + self.joined  # type: ignore[operator]
            ):
                what = f"status {outcome.status}, {opened} worlds, {outcome.model.clock.now:.0f} s"
                return f"{what}\n{outcome.model.story()}"
        return ""


def at_all(base: Case, *faults: Fault, step: int = 6, begin: int = 1, end: int = 130) -> tuple[Case, ...]:
    """A case with faults at many points: all of them, moved together."""
    return tuple(
        replace(base, seed=at, faults=tuple(replace(fault, at=fault.at + at) for fault in faults))
        for at in range(begin, end, step)
    )


# ── mutants ──


NOBODYS = property(lambda _: (0, 0))
"""A total says nothing of the group that made it."""


def _patch(target: Any, name: str, value: Any) -> Mutant:
    return lambda monkeypatch: monkeypatch.setattr(target, name, value)


def _without_the_net(mutant: Mutant) -> Mutant:
    """The mutant where workers that were left out are not recognised by the group they were in, which finds it too."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RunState, "left_out", lambda *_: False)
        mutant(monkeypatch)

    return apply


def _without_waiting_for_the_unseen(mutant: Mutant) -> Mutant:
    """The mutant where a run moves on to its next job before all its workers were seen, which it has to mend."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Rank, "awaited", property(lambda _: False))
        mutant(monkeypatch)

    return apply


def _two_worlds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next world is opened while the present one comes up, and couriers say where they are in any order."""

    def may_prepare(turn: Turn, present: World) -> bool:
        del present
        due = any(rank.state is RankState.DUE and not rank.misses for rank in turn.run.ranks.values())
        return not due and turn.now >= turn.run.prepare_at

    come_up = Courier.come_up

    def say_the_last(self: Courier) -> None:
        come_up(self)
        if self.worker is not None:
            self.worker.standby = self.mpirun.number

    monkeypatch.setattr(worlds, "_may_prepare", may_prepare)
    monkeypatch.setattr(Courier, "come_up", say_the_last)


_JOIN = Worker._join


def _take_what_nobody_has_made(self: Worker) -> None:
    """A newcomer says that it has a total of the group that it joins, which may never make one."""
    _JOIN(self)
    self.taken = self.summed if self.joined else self.taken


class _Ranks(dict[int, int]):
    """Members of a world, told apart by rank only."""

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, dict) or self.keys() != other.keys()


class _WorldOfRanks(World):
    """A world that does not know which worker each of its ranks has."""

    def __init__(self, number: int, members: Any, reason: Any, opened: float) -> None:
        super().__init__(number, _Ranks(members), reason, opened)

    def has(self, rank: Rank) -> bool:
        return rank.number in self.members


def _any_worker_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "World", _WorldOfRanks)


def _nobody_knows_of_the_halt(monkeypatch: pytest.MonkeyPatch) -> None:
    _nobody_is_seen_to_halt(monkeypatch)
    monkeypatch.setattr(supervisor.Launcher, "inherit", lambda _: None)


def _nobody_is_seen_to_halt(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Agent._view
    monkeypatch.setattr(Agent, "_view", lambda agent, seat: replace(view(agent, seat), halts=False))


def _counts_by_the_last_it_knows(active: set[int], left: set[int], memberships: Any, hosts: Any) -> bool:
    seen = {rank for host in hosts if left & set(host) for rank in host}
    unsure = memberships[0] - left - seen
    return not unsure or has_majority(active, active | unsure)


def _anybody_writes(turn: Turn) -> None:
    run = turn.run
    run.phase, run.halted, run.halt_reason = Phase.HALTING, turn.now, Signalled(turn.seen.signal)
    run.writer = min((r.number for r in run.active() if r.state is not RankState.EXITING), default=-1)
    turn.do(actions.Halt(run.writer))


def _kill_all_that_hang(_: HangJudge, still: dict[int, Stillness], step: int, now: float) -> list[int]:
    del step, now
    return [rank for rank, one in still.items() if one.hangs]


def _clean_before_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Agent.__init__

    def init(self: Agent, model: Any, host: Any) -> None:
        if all(worker.exiting for worker in host.segments.values()) and not any(one.alive for one in host.agents):
            host.segments.clear()
        original(self, model, host)

    monkeypatch.setattr(Agent, "__init__", init)


def _say_it_when_the_step_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "taken", property(lambda self: self.summed, lambda *_: None), raising=False)


def _counts_from_the_next_world_on(run: RunState, rank: Rank) -> bool:
    return run.taken > max((rank.seen.world, rank.seen.shrink), rank.seen.taken)


UNSEEN = tuple(
    Case(
        workers=4, hosts=2, steps=80,
        faults=(
            Fault(Kind.KILL, 60, target=1), Fault(Kind.AGENT, at, target=1),
            *(Fault(Kind.KILL, at, target=rank, after=0.05) for rank in (2, 3)),
        ),
    )
    for at in (297, 298, 299)
)  # fmt: skip
"""Of two workers of a host whose agent is lost, one goes on with the other when a world is replaced, and both die."""


def _count_at_every_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    original = HangJudge.judge

    def judge(self: HangJudge, still: dict[int, Stillness], step: int, *rest: Any) -> list[int]:
        self.hung += self.hung > 0 and self.step == step
        return original(self, still, step, *rest)

    monkeypatch.setattr(HangJudge, "judge", judge)


def _hosts_always_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(run: RunState, seen: Observations, now: float) -> list[actions.Action]:
        return decide(run, replace(seen, hosts_known=True), now)

    monkeypatch.setattr(supervisor, "decide", changed)
    monkeypatch.setattr(worlds, "network_is_whole", lambda _: True)


def _saving_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(run: RunState, seen: Observations, now: float) -> list[actions.Action]:
        ranks = {number: replace(rank, saving=False) for number, rank in seen.ranks.items()}
        return decide(run, replace(seen, ranks=ranks), now)

    monkeypatch.setattr(supervisor, "decide", changed)


def _stopped_couriers_look_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(run: RunState, seen: Observations, now: float) -> list[actions.Action]:
        ranks = {
            number: replace(rank, courier=CourierState.ALIVE) if rank.courier is CourierState.STOPPED else rank
            for number, rank in seen.ranks.items()
        }
        return decide(run, replace(seen, ranks=ranks), now)

    monkeypatch.setattr(supervisor, "decide", changed)


def _active_or_fresh(turn: Any) -> set[int]:
    run = turn.run
    if run.fresh and run.world is not None:
        return {rank.number for rank in run.living() if run.world.has(rank)}
    return {rank.number for rank in run.active()}


def _over_when_somebody_ended(run: RunState) -> bool:
    return any(rank.seen.over or rank.seen.status == DONE for rank in run.ranks.values())


def _done_when_somebody_ended(seen: Any, writer: int, *, halted: bool, apart: bool) -> int:
    del writer, apart
    return DONE if not halted and any(one.status == DONE for one in seen) else FAILED


def _status_of_the_job_alone(seen: Any, writer: int, *, halted: bool, apart: bool) -> int:
    del writer, halted, apart
    return DONE if any(one.over for one in seen) else FAILED


def _exiting_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def living(run: RunState) -> list[Rank]:
        return [rank for rank in run.ranks.values() if rank.alive and rank.state is not RankState.EXITING]

    monkeypatch.setattr(RunState, "living", living)


def _see_what_is_there(turn: Any) -> list[Rank]:
    run, found = turn.run, []
    world = run.world.number if run.world is not None else 0
    for number, seen in turn.seen.ranks.items():
        if run.ranks[number].see(seen, world):
            found.append(run.ranks[number])
        run.fresh = run.fresh and not run.ranks[number].seen.active
    return found


def _always_settled(turn: Any, world: World, members: list[Rank]) -> bool:
    del turn, world, members
    return True


def _lost_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Couriers that end by themselves without repair are taken for ones that died alone."""
    original = worlds.mind_world

    def changed(turn: Any) -> None:
        run = turn.run
        if run.world is not None and not run.over():
            members = [rank for rank in run.present() if run.world.has(rank)]
            lost = [rank for rank in members if rank.seen.courier is CourierState.LOST]
            if lost and len(lost) < len(members) and run.world.number not in turn.seen.ended_worlds:
                worlds._kill_lost(turn, lost)
                return
        original(turn)

    monkeypatch.setattr(decide_module, "mind_world", changed)


SPARE = Case(workers=2, spares=1, policy="spare")
SHRINK = Case(policy="shrink", steps=8)
TWO = Case(workers=2, hosts=2)
THREE = Case(workers=3, hosts=3)
FOUR = Case(workers=4, hosts=2)
APART = Case(spares=1, hosts=2, apart=True, steps=3, load=2.0, tail=2.0)
KNOWN = [
    Known(
        "A host was cut off just when its workers got the state, which the launcher could no longer see",
        (
            Case(
                workers=4, hosts=2, apart=True, steps=3, seed=6123, tail=2.0,
                faults=(Fault(Kind.CUT, 39, target=0, after=0.01), Fault(Kind.EXIT, 75, target=2, after=1.0)),
            ),
            replace(
                APART, policy="spare", steps=2, seed=12612, exit=3.0,
                faults=(Fault(Kind.KILL, 144, target=0, after=5.0), Fault(Kind.CUT, 16, target=0)),
            ),
        ),
        status=HALTED,
        mutant=_patch(hosts, "_holders", _active_or_fresh),
    ),
    Known(
        "A host died and did not answer the probe before it counted as quiet",
        (
            replace(APART, policy="restart", seed=9601, faults=(Fault(Kind.HOST, 79, target=0),)),
            replace(
                APART, policy="restart", workers=4, least=2, steps=2, seed=19493, exit=3.0,
                faults=(Fault(Kind.HOST, 88, target=0, after=0.01),),
            ),
        ),
        status=HALTED,
        mutant=_patch(hosts, "HOST_QUIET", -1.0),
    ),
    Known(
        "A courier was stopped (SIGSTOP)",
        at_all(Case(steps=6), Fault(Kind.COURIER_STOP, 0, 1), begin=30, step=5),
        mutant=_stopped_couriers_look_alive,
    ),
    Known(
        "mpirun was stopped and then a worker died",
        at_all(SHRINK, Fault(Kind.MPIRUN_STOP, 0), Fault(Kind.KILL, 0, 1, after=0.01), begin=30, step=5),
        mutant=_stopped_couriers_look_alive,
    ),
    Known(
        "A member that was left out of the last sum was told to leave with its own sum after the others",
        at_all(Case(policy="shrink", hosts=2, steps=3), Fault(Kind.CUT_MPI, 0, 1, lasts=6.0), begin=40, step=1),
        mutant=_without_the_net(_patch(deaths, "_sum_of", lambda rank: rank.seen.step)),
    ),
    Known(
        "A member lacked the last step because the others had done it without that member and left",
        at_all(Case(policy="shrink", hosts=2, steps=3), Fault(Kind.CUT_MPI, 0, 1, lasts=6.0), begin=40, step=3),
        mutant=_patch(decide_module, "release_rest", lambda _: None),
    ),
    Known(
        "A stopped spare kept a finished run from ending",
        at_all(SPARE, Fault(Kind.STOP, 0, 2), begin=70),
        seconds=60.0,
        mutant=_patch(deaths, "RELEASE", 1e9),
    ),
    Known(
        "The courier of a spare that had already left was stopped, and the last member waited for it",
        (
            Case(
                policy="spare", workers=2, spares=1, least=2, steps=2, seed=6160,
                faults=(
                    Fault(Kind.COURIER_STOP, 26, target=2, after=0.1), Fault(Kind.LAUNCHER, 107, after=1.0, lasts=0.5),
                ),
            ),
        ),
        mutant=_patch(deaths, "RELEASE", 1e9),
    ),
    Known(
        "A launcher that attached between two jobs killed a worker that had moved on to the second",
        (
            Case(
                policy="spare", spares=1, jobs=2, steps=3, seed=8558, load=2.0,
                faults=(
                    Fault(Kind.LAUNCHER, 54, after=0.1, lasts=0.5), Fault(Kind.STOP, 90, target=3, after=0.1),
                ),
            ),
        ),
    ),
    Known(
        "A worker was killed after its first world had been opened and before any worker had the state: its successor "
        "was in no world",
        (
            Case(
                workers=2, jobs=2, steps=3, seed=10676, load=2.0,
                faults=(
                    Fault(Kind.KILL, 78, target=1, after=15.0), Fault(Kind.RAISE, 94, target=0, after=5.0),
                    Fault(Kind.STALL, 34, target=0, after=0.1, lasts=3.0),
                ),
            ),
        ),
        mutant=_patch(deaths, "end_world", lambda _: None),
    ),
    Known(
        "A launcher that attached to a run that was being halted knew neither that nor the reason",
        (
            Case(
                policy="spare", spares=1, jobs=2, seed=11364, load=2.0, exit=3.0, tail=2.0,
                faults=(
                    Fault(Kind.EXIT, 10, target=2), Fault(Kind.LAUNCHER, 14, after=5.0, lasts=35.0),
                    Fault(Kind.COURIER_STOP, 126, target=0, after=5.0),
                ),
            ),
        ),
        status=FAILED,
        mutant=_patch(supervisor.Launcher, "inherit", lambda _: None),
    ),
    Known(
        "A launcher that attached just when the workers of a halted run exited",
        at_all(
            Case(workers=2, steps=9, save=1.0), Fault(Kind.SIGNAL, 0), Fault(Kind.LAUNCHER, 0, after=0.5, lasts=0.5),
            begin=30, end=90,
        ),
        status=HALTED,
        mutant=_nobody_knows_of_the_halt,
    ),
    Known(
        "A launcher attached just when workers that had waited too long for one stopped by themselves",
        tuple(
            Case(
                workers=2, steps=9, save=1.0, seed=at, faults=(Fault(Kind.LAUNCHER, at, lasts=ORPHAN + at / 25),)
            )
            for at in range(30, 60, 3)
        ),
        status=HALTED,
        mutant=_nobody_is_seen_to_halt,
    ),
    Known(
        "A host rebooted before it counted as lost, and the next agent found no workers there",
        at_all(replace(THREE, steps=8), Fault(Kind.HOST, 0, 1, lasts=1.0), begin=10, step=9),
        mutant=_patch(decide_module, "_see", _see_what_is_there),
    ),
    Known(
        "An agent that was told to kill a worker that did not exist failed, and so did the next agent",
        at_all(replace(SPARE, hosts=2, exit=3.0), Fault(Kind.HOST, 0, 1, lasts=1.0), begin=10, step=9),
    ),
    Known(
        "With `--on-failure restart`, a worker that joined too late for any step was replaced forever",
        at_all(Case(policy="restart", workers=2, hosts=2), Fault(Kind.EXIT, 0, 1), begin=60, step=3),
    ),
    Known(
        "A worker was stopped just when a run began and its state was to become everyone's first state",
        at_all(replace(THREE, spares=1), Fault(Kind.STOP, 0, 0), begin=15, end=40, step=2),
    ),
    Known(
        "A worker hung after the others had left",
        at_all(Case(workers=2, steps=3), Fault(Kind.HANG, 0, 1), begin=58, end=70, step=1)
        + at_all(Case(workers=3, steps=3), Fault(Kind.HANG, 0, 1), begin=85, end=105, step=1),
    ),
    Known(
        "With `--on-failure restart`, couriers that exited because the network broke took their workers",
        at_all(replace(FOUR, policy="restart", spares=1, steps=6), Fault(Kind.CUT, 0, 1), begin=20, step=9),
        mutant=_lost_is_lost_alone,
    ),
    Known(
        "The probe reported that a host was cut off when the job was already done, and the run was",
        at_all(replace(TWO, tail=4.0, steps=2), Fault(Kind.CUT_MPI, 0, 1), begin=8, step=3),
    ),
    Known(
        "A launcher attached when the job was done except for one missing worker, and waited for that",
        at_all(
            replace(TWO, policy="shrink", steps=3), Fault(Kind.CUT_MPI, 0, 1, lasts=25.0),
            Fault(Kind.LAUNCHER, 41, after=1.0, lasts=0.5), begin=4, end=30, step=2,
        ),
    ),
    Known(
        "A launcher attached to a run most of whose members were done, and formed a world of the",
        at_all(
            Case(policy="spare", workers=4, spares=1, hosts=3, steps=3), Fault(Kind.KILL, 0, 0),
            Fault(Kind.LAUNCHER, 22, lasts=0.5), begin=60, end=140, step=2,
        ),
    ),
    Known(
        "A SIGTERM that arrived when the last step was done changed the exit status to 1",
        at_all(Case(steps=2), Fault(Kind.SIGNAL, 0), begin=50, end=90, step=1),
        or_status=HALTED,
    ),
    Known(
        "A run exited with status 0 because of a released spare, although its other workers had all",
        at_all(SPARE, Fault(Kind.KILL, 0, 0), Fault(Kind.KILL, 0, 1), begin=84, end=92, step=1),
        status=FAILED,
        or_status=DONE,
    ),
    Known(
        "With `--on-failure checkpoint`, a host was lost while all workers were being killed",
        at_all(
            Case(policy="checkpoint", workers=4, hosts=3, steps=60), Fault(Kind.HOST, 0, 1, lasts=25.0),
            Fault(Kind.KILL, 0, 1, after=6.0), begin=60, end=100,
        ),
    ),
    Known(
        "A host was cut off just when a run began, and its workers trained and finished there",
        at_all(replace(SPARE, hosts=2, apart=True, steps=3), Fault(Kind.CUT, 0, 0), begin=9, end=60, step=2),
        status=FAILED,
        or_status=HALTED,
    ),
    Known(
        "One launcher told a member that was left behind to leave, and the next launcher waited for it",
        at_all(
            Case(policy="spare", workers=4, spares=1, hosts=3), Fault(Kind.SLOW, 0, 2, lasts=60.0),
            Fault(Kind.COURIER, 11, 2), Fault(Kind.LAUNCHER, 0, after=0.5, lasts=0.5), begin=80, end=120, step=1,
        ),
    ),
    Known(
        "A host that was cut off as a whole also did not answer the probe",
        at_all(replace(THREE, policy="restart", apart=True, steps=6), Fault(Kind.CUT, 0, 2, lasts=25.0), begin=30),
    ),
    Known(
        "A courier died alone, the others continued without its worker, and then mpirun",
        at_all(Case(steps=6, policy="shrink"), Fault(Kind.COURIER, 0, 1), Fault(Kind.MPIRUN, 9), begin=20, step=2),
        mutant=_patch(recovery, "claims", lambda held: [tuple(own) for own in held]),
    ),
    Known(
        "All workers that had the state died, and a spare started",
        at_all(SPARE, Fault(Kind.KILL, 0, 0), Fault(Kind.KILL, 0, 1), begin=75, end=90),
        status=FAILED,
    ),
    Known(
        "After a network partition healed, couriers on the far side took connection resets for deaths",
        at_all(replace(THREE, steps=8, policy="shrink"), Fault(Kind.CUT_MPI, 0, 1, lasts=9.0), begin=40, step=3),
        mutant=_patch(recovery, "may_go_on", lambda *_: True),
    ),
    Known(
        "The network broke while couriers agreed on a new membership",
        (Case(
            policy="spare", spares=1, hosts=2, seed=16342, tail=2.0,
            faults=(Fault(Kind.EXIT, 52, target=1, after=0.01), Fault(Kind.CUT_MPI, 91, target=1)),
        ),),
        mutant=_patch(recovery, "may_go_on", _counts_by_the_last_it_knows),
    ),
    Known(
        "A worker that had been left out of the last steps wrote a checkpoint when the run was stopped",
        (Case(
            policy="shrink", workers=2, hosts=2, apart=True, steps=3, seed=17801, exit=3.0, faults=(
                Fault(Kind.HOST, 76, target=1, after=1.0), Fault(Kind.SIGNAL, 20, after=5.0),
                Fault(Kind.CUT, 86, target=1, after=0.01, lasts=25.0),
                Fault(Kind.CUT_MPI, 26, target=0, after=0.01, lasts=1.0),
            ),
        ),),
        mutant=_patch(halting, "begin_halt", _anybody_writes),
    ),
    Known(
        "All workers on this side of a partition had been killed for a restart, and the run ended with",
        (Case(
            policy="checkpoint", workers=4, spares=1, hosts=3, steps=3, seed=10612, load=2.0, tail=2.0,
            faults=(Fault(Kind.CUT, 93, target=1), Fault(Kind.COURIER, 10, target=1, after=1.0)),
        ),),
        status=HALTED,
    ),
    Known(
        "Couriers continued for some rounds after mpirun had",
        at_all(replace(FOUR, steps=8), Fault(Kind.MPIRUN, 0), begin=20, end=180),
    ),
    Known(
        "A worker of a world in preparation died and was started again; its rank",
        at_all(replace(Case(), steps=40), Fault(Kind.KILL, 0, 1), Fault(Kind.KILL, 0, 1, after=0.2), begin=60, step=4),
        seconds=60.0,
    ),
    Known(
        "A chip was lost with all its processes; while the launcher was retrying its host,",
        at_all(replace(THREE, steps=8), Fault(Kind.HOST, 0, 1), begin=30),
        worlds=2,
        mutant=_hosts_always_known,
    ),
    Known(
        "A host was lost while its world was coming up",
        at_all(replace(TWO, steps=8), Fault(Kind.STALL, 0, 1, lasts=200.0), Fault(Kind.MPIRUN, 9), begin=40, step=30),
        worlds=8,
    ),
    Known(
        "All workers waited for the same slow file or ran the same long evaluation",
        at_all(Case(), *(Fault(Kind.SLOW, 0, rank, lasts=30.0) for rank in range(3)), begin=60, end=110),
        mutant=_patch(HangJudge, "judge", _kill_all_that_hang),
    ),
    Known(
        "A run that was halted exited with status",
        at_all(Case(save=100.0, steps=6), Fault(Kind.SIGNAL, 0), begin=60, end=110),
        status=HALTED,
        mutant=_saving_does_not_count,
    ),
    Known(
        "A run whose script failed after the last step exited with status 0",
        (Case(tail_status=1),),
        status=FAILED,
        mutant=_patch(decide_module, "exit_status", _status_of_the_job_alone),
    ),
    Known(
        "A worker killed by a signal without a name (35) crashed the",
        (Case(policy="restart", raising=(1,), steps=6),),
        worlds=6,
        mutant=_patch(deaths, "RESTARTS", 10**6),
    ),
    Known(
        "A mesh was cut in two: worlds were formed over both halves",
        at_all(replace(FOUR, steps=8), Fault(Kind.CUT_MPI, 0, 1), begin=15, end=90, step=10),
        worlds=4,
        seconds=40.0,
        mutant=_patch(worlds, "network_is_whole", lambda _: True),
    ),
    Known(
        "The first couriers of a world waited more than five seconds for the last",
        tuple(Case(open=20.0, seed=seed) for seed in range(5)),
        worlds=1,
        mutant=_patch(worlds, "_settled", _always_settled),
    ),
    Known(
        "A worker that was replaced more than a minute after its world began",
        (Case(lane=3.0, steps=20, load=20.0, faults=(Fault(Kind.KILL, 60, 1, after=80.0),)),),
        worlds=2,
        mutant=_any_worker_of_the_rank,
    ),
    Known(
        "A host lost after the last step, while its worker was still leaving",
        (replace(TWO, tail=10.0, steps=2, faults=(Fault(Kind.HOST, 40, 1, after=2.0),)),),
    ),
    Known(
        "A worker that exited early with status 0 released all",
        at_all(
            replace(SPARE, spares=2, steps=60), Fault(Kind.EXIT, 0, 0), Fault(Kind.KILL, 0, 1, after=0.5),
            Fault(Kind.KILL, 0, 2, after=1.0), begin=60, end=90,
        ),
        mutant=_patch(RunState, "over", _over_when_somebody_ended),
    ),
    Known(
        "A worker that died while a new world was being formed was a member of it",
        at_all(Case(exit=1.5, steps=8), Fault(Kind.MPIRUN, 0), Fault(Kind.KILL, 0, 1), begin=40, step=9),
    ),
    Known(
        "A newcomer that was no longer needed kept a run from ending when its script failed after the",
        at_all(
            Case(load=1.0, lane=0.03, steps=20), Fault(Kind.KILL, 0, 1), Fault(Kind.STOP, 0, 1, after=1.5), begin=60,
            step=20,
        ),
        seconds=60.0,
        mutant=_patch(decide_module, "release_rest", lambda _: None),
    ),
    Known(
        "Workers that all left in the middle with status 0",
        at_all(Case(), *(Fault(Kind.EXIT, 0, rank) for rank in range(3)), begin=60, end=90),
        status=FAILED,
        mutant=_patch(decide_module, "exit_status", _done_when_somebody_ended),
    ),
    Known(
        "The one worker that had the state so far was killed, or lost its courier, before the first step",
        (
            Case(workers=2, hosts=2, steps=3, seed=6819, faults=(Fault(Kind.COURIER, 19, target=1),)),
            Case(
                workers=4, hosts=2, apart=True, jobs=2, steps=2, seed=2097, faults=(
                    Fault(Kind.KILL, 17, target=0, after=5.0), Fault(Kind.CUT, 117, target=0, after=0.1, lasts=1.0),
                ),
            ),
        ),
        mutant=_patch(deaths, "_may_begin_anew", lambda _: False),
    ),
    Known(
        "SIGTERM just when the second job of a script had begun",
        tuple(
            Case(policy="checkpoint", hosts=3, jobs=2, steps=2, seed=373247, faults=(Fault(Kind.SIGNAL, at),))
            for at in range(118, 160, 4)
        ),
        status=HALTED,
        mutant=_patch(RunState, "halted_fresh", property(lambda run: run.fresh, lambda *_: None)),
    ),
    Known(
        "A worker was stopped (SIGSTOP) while it loaded, or between two jobs",
        (
            Case(
                policy="checkpoint", hosts=2, jobs=2, seed=755, load=2.0, faults=(
                    Fault(Kind.SLOW, 2, target=1, after=1.0, lasts=10.0),
                    Fault(Kind.SLOW, 226, target=0, after=0.01, lasts=10.0),
                    Fault(Kind.SLOW, 294, target=2, after=5.0, lasts=0.5), Fault(Kind.HANG, 120, target=0, after=5.0),
                ),
            ),
        ),
    ),
    Known(
        "A worker whose memory took long to free counted as dead before its exit status was known",
        at_all(Case(workers=1, policy="checkpoint", exit=1.5, steps=6), Fault(Kind.KILL, 0, 0), begin=20, end=50),
        mutant=_exiting_is_dead,
    ),
    Known(
        "A launcher that attached used the number of a world that the killed one had just opened",
        (
            Case(
                workers=4, hosts=2, steps=20, seed=3, load=0.2, open=2.0, lane=0.1, faults=(
                    Fault(Kind.KILL, 30, target=1), Fault(Kind.CUT_MPI, 106, target=1, lasts=0.1),
                    Fault(Kind.LAUNCHER, 106, after=0.01, lasts=0.4),
                ),
            ),
        ),
        mutant=_without_the_net(_patch(Agent, "open", lambda *_, **__: None)),
    ),
    Known(
        "A courier was lost, the other worker went on alone and then exited",
        (
            Case(
                workers=2, steps=3, seed=438,
                faults=(Fault(Kind.COURIER, 45, target=1), Fault(Kind.EXIT, 45, target=0, after=0.1)),
            ),
        ),
        status=FAILED,
        mutant=_without_the_net(_patch(worlds, "_was_left_out", lambda *_: False)),
    ),
    Known(
        "The last worker exited with status 0 in the middle of its last step",
        (
            Case(
                workers=2, hosts=2, steps=3, seed=2948,
                faults=(Fault(Kind.COURIER, 24, target=1), Fault(Kind.EXIT, 59, target=0)),
            ),
        ),
        status=FAILED,
    ),
    Known(
        "The network between two hosts broke as a run began",
        (Case(workers=4, hosts=2, steps=3, seed=15510, faults=(Fault(Kind.CUT_MPI, 14, target=1),)),),
        mutant=_patch(Rank, "forget", lambda _: None),
    ),
    Known(
        "In the second job of a script, a launcher attached and reached only a spare",
        (
            Case(
                policy="checkpoint", workers=2, spares=1, hosts=2, apart=True, jobs=2, steps=3, seed=6561, tail=2.0,
                faults=(
                    Fault(Kind.COURIER, 228, target=1), Fault(Kind.LAUNCHER, 94, after=1.0, lasts=35.0),
                    Fault(Kind.HOST, 116, target=0, after=0.1),
                ),
            ),
        ),
        status=HALTED,
        mutant=_patch(jobs, "has_majority", lambda *_: True),
    ),
    Known(
        "A replacement that was due when the next job of a script began waited for ever",
        (
            Case(
                workers=2, hosts=2, jobs=2, seed=15640, load=2.0, exit=3.0, tail=2.0,
                faults=(
                    Fault(Kind.COURIER, 37, target=0), Fault(Kind.HOST, 51, target=1, after=15.0),
                    Fault(Kind.CUT_MPI, 58, target=1),
                ),
            ),
        ),
    ),
    Known(
        "The only worker with the first state was cut off for good just after another one had died",
        (
            Case(
                workers=2, hosts=2, steps=3, seed=2324,
                faults=(Fault(Kind.KILL, 18, target=0), Fault(Kind.CUT_MPI, 22, target=1, after=0.1)),
            ),
        ),
    ),
    Known(
        "The courier of the only worker that had the first state died, where dead workers are not replaced",
        (
            Case(
                policy="shrink", workers=2, hosts=2, steps=3, seed=100630, faults=(Fault(Kind.COURIER, 19, target=0),),
            ),
            Case(policy="shrink", hosts=2, steps=3, seed=104296, faults=(Fault(Kind.COURIER, 26, target=2),)),
        ),
        mutant=_patch(Rank, "forget", lambda _: None),
    ),
    Known(
        "A launcher was killed in the middle of a restart",
        (
            Case(
                policy="checkpoint", workers=4, hosts=2, steps=3, seed=102151,
                faults=(Fault(Kind.COURIER_STOP, 112, target=2), Fault(Kind.LAUNCHER, 158, lasts=0.5)),
            ),
            Case(
                policy="checkpoint", steps=3, seed=94172,
                faults=(Fault(Kind.HANG, 67, target=0), Fault(Kind.LAUNCHER, 106, lasts=0.5)),
            ),
        ),
    ),
    Known(
        "A launcher was killed while workers were left out of their group",
        (
            Case(
                policy="shrink", workers=2, hosts=2, steps=3, seed=54055,
                faults=(Fault(Kind.CUT, 32, target=1, lasts=25.0), Fault(Kind.LAUNCHER, 47, lasts=35.0)),
            ),
            Case(
                policy="shrink", hosts=3, steps=3, seed=65475,
                faults=(Fault(Kind.LAUNCHER, 27, lasts=35.0), Fault(Kind.STOP, 27, target=1, after=0.1)),
            ),
        ),
        mutant=_without_the_net(_patch(MemberState, "made_by", NOBODYS)),
    ),
    Known(
        "A worker that was left out of the last step was told to leave",
        (
            Case(
                policy="shrink", hosts=3, steps=3, seed=62574,
                faults=(Fault(Kind.COURIER, 83, target=2), Fault(Kind.FULL, 100, target=0, after=12.0)),
            ),
        ),
        mutant=_patch(RunState, "left_out", lambda *_: False),
    ),
    Known(
        "A host with all workers rebooted within seconds of the first step",
        (
            Case(
                policy="restart", workers=2, spares=1, hosts=2, apart=True, steps=2, sums=2, seed=15422,
                load=2.0, exit=3.0, tail=2.0, faults=(Fault(Kind.HOST, 84, target=0, after=0.01, lasts=1.0),),
            ),
        ),
        status=FAILED,
    ),
    Known(
        "The launcher waited forever for a worker that was stopped while it wrote the last checkpoint",
        (
            Case(
                workers=2, hosts=2, steps=3, seed=16323672,
                faults=(Fault(Kind.SIGNAL, 22), Fault(Kind.STOP, 46, target=0)),
            ),
        ),
        status=HALTED,
        or_status=FAILED,
    ),
    Known(
        "A courier was stopped while the others left the loop, and a member waited for it forever",
        (
            Case(
                policy="spare", spares=1, hosts=2, jobs=2, steps=2, seed=213,
                faults=(Fault(Kind.COURIER_STOP, 112, target=1),), exit=3.0, tail=2.0,
            ),
        ),
    ),
    Known(
        "A worker could not be replaced because another program had filled /dev/shm",
        at_all(Case(steps=8), Fault(Kind.FULL, 0, 0, lasts=5.0), Fault(Kind.KILL, 0, 1, after=0.1), begin=40, end=100),
    ),
    Known(
        "While a run was being halted, the agent of a host was replaced",
        at_all(
            replace(TWO, steps=9, save=5.0), Fault(Kind.SIGNAL, 0), Fault(Kind.AGENT, 0, 1, after=0.5), begin=40,
            end=80,
        ),
        status=HALTED,
        seconds=60.0,
    ),
    Known(
        "A worker that joined while the others left the loop ended the run",
        at_all(Case(jobs=2, steps=2), Fault(Kind.KILL, 0, 1), begin=30, end=110, step=4),
    ),
    Known(
        "A worker was replaced, and the world in which it was to join could not come up",
        at_all(Case(steps=60), Fault(Kind.STALL, 0, 0, lasts=30.0), Fault(Kind.KILL, 0, 1), begin=60, end=90, step=10),
        worlds=8,
    ),
    Known(
        "Losing a host whose workers were only starting ended the world of all others",
        at_all(
            Case(hosts=2, steps=60), Fault(Kind.ADD, 0, 2, lasts=2.0), Fault(Kind.HOST, 0, 2, after=0.5), begin=60,
            end=100, step=10,
        ),
        worlds=1,
    ),
    Known(
        "A run was told to stop just after a courier died alone",
        at_all(Case(steps=9), Fault(Kind.COURIER, 0, 0), Fault(Kind.SIGNAL, 0), begin=60, end=100, step=5),
        status=HALTED,
    ),
    Known(
        "A worker that was cut off before the last total of a job waited for it for ever",
        (
            Case(
                policy="shrink", hosts=2, least=2, jobs=2, sums=2, seed=15123, exit=3.0, tail=2.0,
                faults=(
                    Fault(Kind.SLOW, 114, target=2, lasts=10.0), Fault(Kind.LAUNCHER, 170, after=15.0, lasts=0.5),
                    Fault(Kind.CUT, 53, target=1, after=0.1, lasts=25.0),
                ),
            ),
        ),
        mutant=_without_waiting_for_the_unseen(_patch(jobs, "RELEASE", 1e9)),
    ),
    Known(
        "A host was cut off while its agent was stopped",
        (
            Case(
                policy="shrink", hosts=2, steps=3, sums=2, in_place=True, seed=1000191, load=2.0, exit=3.0, tail=2.0,
                faults=(
                    Fault(Kind.FULL, 83, target=1, lasts=1.0), Fault(Kind.CUT, 48, target=1, lasts=25.0),
                    Fault(Kind.AGENT_STOP, 71, target=1, after=0.1),
                ),
            ),
        ),
        mutant=_patch(Agent, "stop", lambda agent: setattr(agent, "stopped", True)),
    ),
    Known(
        "An agent was stopped just when a world was formed",
        (
            Case(
                policy="restart", workers=2, spares=1, hosts=2, apart=True, steps=2, seed=17420, load=2.0,
                faults=(Fault(Kind.CUT, 13, target=1, after=0.01), Fault(Kind.AGENT_STOP, 27, target=0, after=0.01)),
            ),
        ),
        mutant=_patch(worlds, "_was_kept_out", lambda *_: False),
    ),
    Known(
        "A run that had restarted from its checkpoint was stopped before it had done a step",
        (
            Case(
                policy="checkpoint", workers=4, hosts=3, apart=True, steps=3, seed=33665,
                faults=(Fault(Kind.CUT_MPI, 51, target=0, lasts=25.0),),
            ),
        ),
        status=HALTED,
    ),
    Known(
        "A worker was cut off, and the others went on without it and died",
        (
            Case(
                policy="shrink", workers=2, hosts=2, steps=3, sums=3, seed=116543, exit=3.0,
                faults=(
                    Fault(Kind.STOP, 53, target=0, after=1.0), Fault(Kind.EXIT, 100, target=0),
                    Fault(Kind.CUT_MPI, 28, target=1, lasts=1.0), Fault(Kind.SLOW, 40, target=1, lasts=0.5),
                ),
            ),
        ),
        status=FAILED,
        mutant=_patch(RunState, "only_left_out", lambda *_: False),
    ),
    Known(
        "Of two workers that were cut off from each other, the one that had gone on lost its courier",
        (
            Case(
                policy="shrink", hosts=3, least=2, sums=2, in_place=True, seed=141918, load=2.0, tail=2.0,
                faults=(
                    Fault(Kind.EXIT, 53, target=0, after=0.1), Fault(Kind.SLOW, 148, target=2, after=5.0, lasts=10.0),
                    Fault(Kind.CUT, 46, target=1, after=0.01, lasts=1.0), Fault(Kind.CUT_MPI, 95, target=1),
                ),
            ),
        ),
        status=FAILED,
        mutant=_patch(RunState, "only_left_out", lambda *_: False),
    ),
    Known(
        "A launcher attached when the others had finished",
        (
            Case(
                hosts=3, steps=8, seed=427,
                faults=(
                    Fault(Kind.KILL, 81, target=1), Fault(Kind.CUT, 161, target=2, lasts=45.0),
                    Fault(Kind.LAUNCHER, 161, after=1.0, lasts=0.5),
                ),
            ),
            Case(
                hosts=2, steps=8, seed=1045, load=2.0,
                faults=(
                    Fault(Kind.KILL, 74, target=1), Fault(Kind.CUT, 167, target=1, lasts=25.0),
                    Fault(Kind.LAUNCHER, 182, after=0.1, lasts=0.5),
                ),
            ),
        ),
        mutant=_patch(Rank, "awaited", property(lambda _: False)),
    ),
    Known(
        "A launcher attached when all but one worker had gone on to the next job",
        (
            Case(
                hosts=3, jobs=2, steps=8, seed=13035, load=2.0, exit=3.0, tail=2.0,
                faults=(Fault(Kind.CUT, 170, target=1, lasts=45.0), Fault(Kind.LAUNCHER, 218, lasts=0.5)),
            ),
        ),
        mutant=_patch(Rank, "awaited", property(lambda _: False)),
    ),
    Known(
        "A hung worker that was being killed counted as another hang at every poll",
        at_all(
            Case(workers=4, steps=6, exit=3.0), Fault(Kind.HANG, 0, target=1), Fault(Kind.HANG, 0, target=2),
            step=10, begin=60, end=100,
        ),
        seconds=30.0,
        mutant=_count_at_every_poll,
    ),
    Known(
        "SIGTERM after `--attach` ended with status 1 though the checkpoint was written",
        at_all(
            Case(workers=2, steps=20, save=1.0), Fault(Kind.LAUNCHER, 0, lasts=0.5), Fault(Kind.SIGNAL, 0, after=1.0),
            step=20, begin=60, end=150,
        ),
        status=HALTED,
        mutant=_patch(simulated_hosts, "HALTED", None),
    ),
    Known(
        "An agent died just when a world was replaced",
        UNSEEN,
        status=FAILED,
        mutant=_clean_before_looking,
    ),
    Known(
        "A worker took a total, wrote the step before it, and was killed before it had done the next",
        UNSEEN,
        status=FAILED,
        mutant=_say_it_when_the_step_is_done,
    ),
    Known(
        "A worker counted as a member of the next world",
        UNSEEN,
        status=FAILED,
        mutant=_patch(RunState, "left_out", _counts_from_the_next_world_on),
    ),
    Known(
        "A launcher attached while the host of all workers with the state was rebooting",
        (
            Case(
                policy="checkpoint", workers=2, spares=1, hosts=2, apart=True, sums=3, seed=3118, load=2.0, tail=2.0,
                faults=(
                    Fault(Kind.LAUNCHER, 11, after=1.0, lasts=0.5), Fault(Kind.HOST, 87, target=0, lasts=25.0),
                    Fault(Kind.COURIER, 141, target=2, after=1.0),
                ),
            ),
        ),
        status=FAILED,
    ),
    Known(
        "A courier died with the total that the others then made again",
        (
            Case(
                policy="spare", workers=4, spares=1, hosts=3, steps=3, seed=77392,
                faults=(Fault(Kind.RAISE, 97, target=0), Fault(Kind.MPIRUN, 144)),
            ),
            Case(
                policy="shrink", hosts=3, steps=3, seed=114472,
                faults=(Fault(Kind.CUT, 82, target=1, lasts=1.0), Fault(Kind.STOP, 120, target=0)),
            ),
        ),
        mutant=_patch(MemberState, "made_by", NOBODYS),
    ),
    Known(
        "A replacement joined a minute late when mpirun had died just before it came",
        (
            Case(steps=60, lane=0.5, seed=4, faults=(Fault(Kind.KILL, 50, target=1), Fault(Kind.MPIRUN, 81))),
            Case(steps=60, lane=0.5, seed=5, faults=(Fault(Kind.KILL, 40, target=1), Fault(Kind.MPIRUN, 74))),
        ),
        worlds=4,
        joined=5.0,
        mutant=_two_worlds_at_once,
    ),
    Known(
        "The network broke while the first group of a run was formed",
        (
            Case(
                policy="restart", workers=2, hosts=2, steps=3, seed=213091,
                faults=(Fault(Kind.CUT, 19, target=1, lasts=1.0),),
            ),
            Case(workers=4, hosts=2, steps=3, seed=28197, faults=(Fault(Kind.CUT_MPI, 20, target=1),)),
            Case(
                policy="spare", workers=4, spares=1, hosts=3, steps=3, seed=122609,
                faults=(Fault(Kind.CUT_MPI, 19, target=1),),
            ),
        ),
        mutant=_patch(Worker, "_join", _take_what_nobody_has_made),
    ),
]  # fmt: skip


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.words[:40])
def test_a_known_bug_stays_away(known: Known) -> None:
    assert not known.wrong()


@pytest.mark.parametrize("known", [one for one in KNOWN if one.mutant], ids=lambda known: known.words[:40])
def test_a_mutant_with_a_known_bug_is_caught(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known.mutant is not None
    known.mutant(monkeypatch)
    assert known.wrong(), "the schedules do not show the bug any more"


def test_every_schedule_names_a_line_of_the_table() -> None:
    table = (Path(__file__).parents[3] / "docs" / "robustness.md").read_text()
    for known in KNOWN:
        assert f"| {known.words}" in table


def test_every_case_of_the_table_is_a_schedule() -> None:
    table = (Path(__file__).parents[3] / "docs" / "robustness.md").read_text()
    found = [eval(text) for text in re.findall(r"`(Case\(.*?\))`", table)]
    assert len(found) >= 2
    assert {*found} <= {case for known in KNOWN for case in known.cases}
