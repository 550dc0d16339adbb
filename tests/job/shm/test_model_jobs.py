"""The change of job, and agents that are replaced, under kills and many interleavings; and mutants that must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshmend.errors import JobError
from meshmend.job.protocol import NEVER
from meshmend.job.shm import mailbox
from meshmend.job.shm.mailbox import CourierSide, WorkerSide
from meshmend.job.shm.records import AgentRecord, Assigned, Copied, Held, Order, Slices, Updated
from meshmend.job.shm.segment import CourierSegment, Segment
from meshmend.job.shm.sharded_memory import ShardedMemory, held_in
from meshmend.job.slices.answers import SliceSide
from meshmend.job.slices.holder import Copy
from meshmend.job.state.codec import decode
from meshmend.run.agent.agent import Agent
from tests.simulators import shm_jobs
from tests.simulators.interleaving import Deadlock, Policy, at_random, give_way, interrupt, stay, take_turns
from tests.simulators.shm_jobs import LANES, Jobs
from tests.simulators.shm_sharded import Port, Sharded

VICTIMS = {Jobs: ("agent", "courier", "worker"), Sharded: ("agent", "courier", "worker", "listener")}
WRONG = (AssertionError, Deadlock, JobError, KeyError, TypeError, ValueError)


def play(kind: type[Jobs], policy: Policy, **about: Any) -> Jobs:
    """One run; unless its worker is killed, it does both jobs."""
    simulation = kind(policy, **about).run()
    assert simulation.finished or simulation.worker_dead
    return simulation


def kills(kind: type[Jobs], policy: Policy, stride: int, **about: Any) -> Iterator[tuple[str, int]]:
    """Everybody, before every so many-th step."""
    actors, count = play(kind, policy, **about).actors, 0
    for name in VICTIMS[kind]:
        for step in range(1, max(actor.steps for actor in actors if actor.name == name) + 1):
            count += 1
            if count % stride == 0:
                yield name, step


def explore(kind: type[Jobs], stride: int = 1, seeds: int = 4000) -> None:
    """Kill everybody before every so many-th step, and many seeded schedules with two kills."""
    for release in (False, True):
        for policy in (stay, take_turns):
            for kill in kills(kind, policy, stride, release=release):
                play(kind, policy, kill=kill, release=release)
        for step in range(1, play(kind, stay).total_steps, stride):
            play(kind, interrupt([step, step + 7, step + 11]), release=release)
            for name in VICTIMS[kind]:
                play(kind, give_way(step, name), release=release)
    for seed in range(seeds):
        at = seed * 37
        kill, then = (("agent", "courier")[seed % 2], at % 150 + 1), (VICTIMS[kind][seed % 3], at % 97 + 1)
        play(kind, at_random(seed), kill=kill, then=then, release=seed % 3 == 0)


@pytest.mark.parametrize(("kind", "stride"), [(Jobs, 97), (Sharded, 1009)])
def test_anybody_may_die_between_any_two_accesses(kind: type[Jobs], stride: int) -> None:
    explore(kind, stride, seeds=20)


@pytest.mark.parametrize("release", [False, True])
def test_an_agent_may_die_between_any_two_accesses(release: bool) -> None:
    for step in range(1, 90):
        assert play(Jobs, stay, kill=("agent", step), then=("agent", step % 30 + 1), release=release).agents >= 2


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", [Jobs, Sharded])
def test_every_kill_and_many_schedules(kind: type[Jobs]) -> None:
    explore(kind)


# ── mutants of the change of job, and of the agent ──


def interrupted(record: Any, name: str) -> None:
    """Before the next step of this one, the one of this name runs until it waits."""
    simulation = record._words._simulation
    simulation.policy = give_way(simulation.total_steps + 1, name)


def _ready_first(self: Jobs, segment: Any, job: int) -> None:
    del self
    segment.worker.ready = job
    interrupted(segment.worker, "courier")
    segment.worker.lanes, segment.worker.step = LANES[job], 10 * job
    segment.worker.slices = 0


def _job_first(self: CourierSegment, job: int) -> None:
    record = self.courier
    if record.job != job:
        record.job = job
        interrupted(record, "worker")
        record.active = record.given = record.over = False
        record.assigned, record.copied = Assigned(NEVER, ()), Copied(NEVER, -1)
        record.done = NEVER


def _still_over(self: CourierSegment, job: int) -> None:
    record = self.courier
    if record.job != job:
        record.active = False
        record.assigned, record.done = Assigned(NEVER, ()), NEVER
        record.job = job


def _world_first(self: Any, enter: Any) -> None:
    self._clear()
    for worker in self.workers.values():
        worker.segment.agent.world = enter.world
        interrupted(worker.segment.agent, "courier")
        worker.segment.agent.job = enter.job


def _not_looked_at_again(self: Jobs, segment: Any, world: int) -> None:
    del self, segment, world


def _any_release(segment: Segment) -> bool:
    order = segment.agent.order
    return (order is not None and order.body.order is Order.RELEASE) or (segment.in_job and segment.courier.over)


MUTANTS: list[tuple[Any, str, Any]] = [
    (Jobs, "opens", _ready_first),
    (CourierSegment, "begin_job", _job_first),
    (CourierSegment, "begin_job", _still_over),
    (Agent, "_enter", _world_first),
    (Jobs, "end_with_world", _not_looked_at_again),
    (AgentRecord, "opened", property(lambda _: 0, lambda *_: None)),
    (Segment, "in_job", property(lambda _: True)),
    (mailbox, "is_over", _any_release),
]


def _name(value: Any) -> str:
    return value.strip("_") if isinstance(value, str) else getattr(value, "__name__", "property").strip("_")


@pytest.mark.parametrize(("kind", "name", "mutant"), MUTANTS, ids=_name)
def test_a_mutant_of_the_change_of_job_is_found_out(
    kind: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, mutant)
    if kind is mailbox:
        monkeypatch.setattr(shm_jobs, name, mutant)
    with pytest.raises(WRONG):
        play(Jobs, stay, slow=True)
        explore(Jobs, stride=17, seeds=200)


# ── mutants of sharded rounds ──


def _stage_last(self: CourierSide, round: int, stage: int) -> None:
    self._segment.courier.update_wanted = round
    interrupted(self._segment.courier, "worker")
    self._segment.courier.stage_wanted = stage


def _any_stage(self: CourierSide, round: int, stage: int) -> bool:
    del stage
    mail = self._segment.worker.updated
    return mail is not None and mail.body.round >= round


def _said_before_it_is_done(self: SliceSide, round: int) -> None:
    stage = self._side.update_wanted(round)
    assert stage is not None
    self._side.updated(round, -1, stage + 1)
    with self._listener.changing():
        self._hold()
        self._make(stage, round, self._segment.buffers.total(round), self._replica.memory)  # type: ignore[arg-type]


def _one_mailbox(self: ShardedMemory, value: frozenset[int]) -> None:
    mail = self._segment.courier.held_even
    self._segment.courier.held_even = Held(1 if mail is None else mail.body.turn + 1, tuple(sorted(value)))


def _held_before_it_is_here(self: Any, number: int, copy: Any, look: Callable[[], None]) -> None:
    del look
    self._memory.held |= {number}
    self.segment.files.put_fill(number, copy)


def _copies_first(self: SliceSide) -> None:
    request = self._side.copies_request()
    if request is not None:
        self._side.give_copies(request)
        for number in request.body.slices:
            self._segment.files.write_copy(number, [b"copy"])


def _keeps_slices(self: CourierSegment, job: int) -> None:
    record = self.courier
    if record.job != job:
        record.active = record.over = False
        record.totals = record.met = NEVER, 0, 0
        record.update_wanted, record.copies_wanted = NEVER, Slices(())
        record.done = NEVER
        record.job = job


def _takes_any_fill(self: SliceSide) -> None:
    for number in held_in(self._segment.courier) - self._holder.copies.keys():
        copy = self._segment.files.take_fill(number)
        if copy is not None:
            state, about = decode(copy, None)
            self._holder.copies[number] = Copy(dict(state), about["version"], self._agreed(number))


def _kept_from_before(self: WorkerSide, round: int, wrong: int, stages: int) -> None:
    """The worker counts stages from the first round on, not within a round."""
    self._segment.worker.updated = Updated(round, wrong, stages + round)


SHARDED_MUTANTS: list[tuple[Any, str, Any]] = [
    (CourierSide, "ask_update", _stage_last),
    (CourierSide, "updated", _any_stage),
    (SliceSide, "update", _said_before_it_is_done),
    (ShardedMemory, "held", property(lambda self: frozenset(shown(self)), _one_mailbox)),
    (Port, "fill", _held_before_it_is_here),
    (SliceSide, "hand_out", _copies_first),
    (CourierSegment, "begin_job", _keeps_slices),
    (SliceSide, "_fill", _takes_any_fill),
    (WorkerSide, "updated", _kept_from_before),
]


def shown(memory: ShardedMemory) -> tuple[int, ...]:
    """What one mailbox says."""
    mail = memory._segment.courier.held_even
    return () if mail is None else mail.body.slices


@pytest.mark.parametrize(("kind", "name", "mutant"), SHARDED_MUTANTS, ids=_name)
def test_a_mutant_of_sharded_rounds_is_found_out(
    kind: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, mutant)
    with pytest.raises(WRONG):
        play(Sharded, stay, slow=True)
        for stride in (211, 149, 83):  # which points a sample has shifts with every access that the code makes
            explore(Sharded, stride=stride, seeds=20)
