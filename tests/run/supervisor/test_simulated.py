"""The supervisor and the protocol together, under failures at every point.

Ordinary runs take a sample of each exploration; `make explore` takes all of them, and `MESHMEND_SCHEDULES` random ones.
A failing case prints the end of its trace and itself, to be pasted into `test_known_bugs.py`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice

import pytest

from meshmend.base.clocks import AGENT_ALONE, HOST_SILENCE
from meshmend.base.status import DONE, FAILED, HALTED
from meshmend.job.faults import KINDS
from meshmend.run.supervisor import POLICIES, actions
from tests.simulators.faults import SIMULATED, Fault, Kind
from tests.simulators.ledger import Violation
from tests.simulators.model import Case
from tests.simulators.schedules import (
    bases,
    check,
    new_hosts,
    pairs,
    random_case,
    random_jobs,
    singles,
    singles_of_sums,
    stopped_agents,
)
from tests.simulators.supervisor import simulate

SCHEDULES = int(os.environ.get("MESHMEND_SCHEDULES", "20000"))
BLOCKS = 8


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_without_failures(policy: str) -> None:
    for case in bases():
        if case.policy == policy:
            outcome = simulate(case)
            check(outcome)
            assert outcome.status == DONE
            assert sorted(step for _, _, step in outcome.ledger.written) == list(range(case.steps))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_worker_that_is_killed_at_any_point_costs_nothing(policy: str) -> None:
    spares = int(policy == "spare")
    for at in range(1, simulate(Case(policy=policy, spares=spares)).moves, 7):
        outcome = simulate(Case(policy=policy, spares=spares, faults=(Fault(Kind.KILL, at, target=1),)))
        check(outcome)
        assert outcome.status == DONE


def test_a_signal_halts_with_a_checkpoint_of_the_last_step() -> None:
    moves = simulate(Case(steps=6)).moves
    ends = set()
    for at in range(1, moves, 5):
        outcome = simulate(Case(steps=6, faults=(Fault(Kind.SIGNAL, at),)))
        check(outcome)
        ends.add(outcome.status)
        if outcome.status == HALTED:
            assert max(outcome.ledger.checkpoints) > outcome.ledger.last_step()
        if outcome.status == FAILED:
            assert outcome.ledger.last_step() < 0, "there was something to save"
    assert HALTED in ends


def test_a_second_signal_does_not_wait() -> None:
    outcome = simulate(Case(save=30.0, faults=(Fault(Kind.SIGNAL, 60), Fault(Kind.SIGNAL, 60, after=2.5))))
    assert outcome.status == FAILED
    assert outcome.model.clock.now < 6.0


def test_fewer_than_asked_for_halt_with_a_checkpoint() -> None:
    faults = (Fault(Kind.KILL, 60, target=1), Fault(Kind.KILL, 60, target=2))
    outcome = simulate(Case(policy="shrink", least=2, steps=8, faults=faults))
    check(outcome)
    assert outcome.status == HALTED


def test_when_all_are_dead_the_last_checkpoint_is_there() -> None:
    faults = tuple(Fault(Kind.KILL, 140, target=rank) for rank in range(3))
    outcome = simulate(Case(steps=8, faults=faults))
    assert outcome.status == FAILED
    assert outcome.ledger.checkpoints


def test_a_launcher_that_nobody_replaces_leaves_a_checkpoint_and_nothing_else() -> None:
    outcome = simulate(Case(steps=8, hosts=2, faults=(Fault(Kind.LAUNCHER, 120),)))
    assert outcome.status is None
    assert max(outcome.ledger.checkpoints) > outcome.ledger.last_step() >= 0


def test_one_seed_is_one_run() -> None:
    for seed in range(8):
        traces = [simulate(random_case(seed)).model.trace for _ in range(2)]
        assert [str(line) for line in traces[0]] == [str(line) for line in traces[1]]


def test_single_failures() -> None:
    for case in singles(stride=221):
        check(simulate(case))


def test_single_failures_in_steps_of_two_sums() -> None:
    for case in singles_of_sums(stride=883):
        check(simulate(case))


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_agent_is_stopped_at_any_point(jobs: int) -> None:
    for case in stopped_agents(stride=67, jobs=jobs):
        outcome = simulate(case)
        check(outcome)
        assert outcome.status == DONE


@pytest.mark.parametrize(
    ("fault", "worlds", "taken_over"),
    [
        (Fault(Kind.COURIER_STOP, 60, target=1, lasts=0.1), 1, 0),
        (Fault(Kind.COURIER_STOP, 60, target=1, lasts=5.0), 2, 0),
        (Fault(Kind.MPIRUN_STOP, 60, lasts=0.1), 1, 0),
        (Fault(Kind.MPIRUN_STOP, 60, lasts=5.0), 2, 0),
        (Fault(Kind.AGENT_STOP, 60, target=1, lasts=5.0), 1, 0),
        (Fault(Kind.AGENT_STOP, 60, target=1, lasts=HOST_SILENCE + 5.0), 1, 1),
        (Fault(Kind.LAUNCHER_STOP, 60, lasts=AGENT_ALONE - 5.0), 1, 0),
        (Fault(Kind.LAUNCHER_STOP, 60, lasts=AGENT_ALONE + 5.0), 1, 1),
        (Fault(Kind.FREEZE, 60, target=1, lasts=0.1), 1, 0),
    ],
    ids=repr,
)
def test_what_is_stopped_for_a_while_continues(fault: Fault, worlds: int, taken_over: int) -> None:
    """So long that something else has to take its place, or so short that nothing does."""
    outcome = simulate(Case(hosts=2, workers=4, steps=200, faults=(fault,)))
    check(outcome)
    assert outcome.status == DONE
    assert (outcome.did[actions.OpenWorld], outcome.did[actions.Adopt]) == (worlds, taken_over)


def test_pairs_of_failures() -> None:
    for case in pairs(stride=287):
        check(simulate(case))


@pytest.mark.parametrize("block", range(4))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 200, (block + 1) * 200):
        check(simulate(random_case(seed)))


def test_a_host_that_is_added_takes_part() -> None:
    """All five hold the state in the end; a spare still waits."""
    for policy in POLICIES:
        case = Case(policy=policy, hosts=2, spares=int(policy == "spare"), steps=120, lanes=5)
        outcome = simulate(replace(case, faults=(Fault(Kind.ADD, 60, target=2, lasts=2.0),)))
        check(outcome)
        state = outcome.model.launcher_state
        assert outcome.status == DONE and len(state.config.hosts) == 5 + case.spares
        assert sum(rank.seen.active for rank in state.ranks.values()) == 5, policy


def test_a_host_is_added_at_any_point() -> None:
    for case in new_hosts(stride=6007):
        check(simulate(case))
    for case in new_hosts(stride=60013, jobs=2):
        check(simulate(case))


def test_two_jobs_one_after_another() -> None:
    for case in bases(jobs=2):
        outcome = simulate(case)
        check(outcome)
        assert outcome.status == DONE
        assert sorted(outcome.ledger.written) == [(job, 0, step) for job in (1, 2) for step in range(case.steps)]


def test_single_failures_of_two_jobs() -> None:
    for case in singles(stride=3217, jobs=2):
        check(simulate(case))


def test_random_schedules_of_two_jobs() -> None:
    for seed in range(80):
        check(simulate(random_jobs(seed)))


@pytest.mark.parametrize("kind", [Kind.KILL, Kind.LAUNCHER, Kind.SIGNAL], ids=lambda kind: kind.name)
def test_between_two_jobs(kind: Kind) -> None:
    """At every point from the first worker that leaves the one to the first step of the other."""
    case = Case(jobs=2, steps=2, tail=0.5)
    trace = simulate(case).model.trace
    left = next(moves for _, moves, what, *_ in trace if what == "courier leaves")
    world = [moves for _, moves, _, *rest in trace if any("number=2" in str(one) for one in rest)]
    for at in range(left, max(world) + 20, 3):
        outcome = simulate(replace(case, faults=(Fault(kind, at, target=1, lasts=0.5 * (kind is Kind.LAUNCHER)),)))
        check(outcome)
        assert outcome.status == (HALTED if kind is Kind.SIGNAL else DONE)


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_random_schedule(block: int) -> None:
    for seed in range(block, SCHEDULES, BLOCKS):
        check(simulate(random_case(seed)))


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_random_schedule_of_two_jobs(block: int) -> None:
    for seed in range(block, SCHEDULES, BLOCKS):
        check(simulate(random_jobs(seed)))


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_single_failure(block: int) -> None:
    for case in islice(singles(), block, None, BLOCKS):
        check(simulate(case))


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_single_failure_of_two_jobs(block: int) -> None:
    for case in islice(singles(stride=7, jobs=2), block, None, BLOCKS):
        check(simulate(case))


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_host_is_added_at_every_point(block: int) -> None:
    for case in islice(new_hosts(stride=3), block, None, BLOCKS):
        check(simulate(case))


@pytest.mark.explore
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_pair_of_failures(block: int) -> None:
    for case in islice(pairs(), block, None, BLOCKS):
        check(simulate(case))


def test_every_kind_of_failure_that_can_be_injected_is_simulated() -> None:
    """A bit that flips is explored with the protocol alone: `tests/job/protocol`."""
    assert {*KINDS} == {*SIMULATED, "flip"}
    assert {*SIMULATED.values()} <= {*Kind}


def test_a_failing_schedule_prints_itself() -> None:
    case = Case(workers=2, faults=(Fault(Kind.KILL, 9, target=1, after=0.5),))
    assert eval(repr(case)) == case
    with pytest.raises(Violation, match="simulate"):
        simulate(Case(load=1e6))
