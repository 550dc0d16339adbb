"""What the processes of a real run write makes its incidents: each writer gives the right epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from meshmend.job.shm.inspect import member
from meshmend.report import Incident, Level, incidents
from meshmend.telemetry import Committed, Event, Formed, Repaired, Why, read
from meshmend.testing import Fault
from tests.jobs.jobs import SCRIPT, Job

SHRINK = ["--on-failure", "shrink"]


def found(job: Job) -> list[Incident]:
    assert job.status == 0, job.output
    events = read(job.path)
    assert_in_order(events)
    return [incident for incident in incidents(events) if not incident.joins]


def assert_in_order(events: Sequence[Event]) -> None:
    """What one process does, it does in the order of epochs; later steps are committed in later epochs."""
    lines = [event for event in events if isinstance(event, Committed)]
    for rank in {line.rank for line in lines}:
        epochs = [line.epoch for line in lines if line.rank == rank]
        assert epochs == sorted(epochs)
    for repair in (event for event in events if isinstance(event, Repaired)):
        assert repair.was <= repair.epoch


@pytest.mark.parametrize(
    ("words", "faults", "what", "level"),
    [
        (
            [*SHRINK, "-n", "4"],
            [Fault(rank=2, step=5, point="allreduce"), Fault(rank=0, step=5, point="exchange")],
            ["worker 2 SIGKILL", "worker 0 SIGKILL"],
            Level.SHRINK,
        ),
        pytest.param(
            [*SHRINK, "-n", "3"], [Fault(rank=1, step=7, kind="hang")], ["worker 1 hang"], Level.SHRINK,
            marks=pytest.mark.jobs,
        ),
        pytest.param(
            [*SHRINK, "-n", "3"], [Fault(rank=1, step=7, point="commit", kind="flip")], ["worker 1 flip"],
            Level.SHRINK, marks=pytest.mark.jobs,
        ),
        pytest.param(
            [*SHRINK, "-n", "3"], [Fault(rank=1, step=7, point="allreduce", kind="courier")], ["courier 1"],
            Level.SHRINK, marks=pytest.mark.jobs,
        ),
        pytest.param(
            ["--on-failure", "checkpoint", "--checkpoint-every", "5", "-n", "2"], [Fault(rank=1, step=13)],
            ["worker 1 SIGKILL"], Level.CHECKPOINT, marks=pytest.mark.jobs,
        ),
        pytest.param(
            ["--on-failure", "restart", "-n", "2"], [Fault(rank=1, step=13)], ["worker 1 SIGKILL"], Level.NEW_WORLD,
            marks=pytest.mark.jobs,
        ),
    ],
)  # fmt: skip
def test_a_failure_is_one_incident(
    job: Job, words: list[str], faults: list[Fault], what: list[str], level: Level
) -> None:
    job.faults = faults
    (incident,) = found(job.run(*words))
    assert (incident.what, incident.level, incident.step) == (what, level, faults[0].step)
    assert incident.total is not None and incident.total > 0
    assert incident.was < incident.epoch
    job.assert_clean()


def test_a_lost_mpirun_is_one_incident(job: Job) -> None:
    job.start("-n", "3", script=[SCRIPT, "steps=120", "pause=0.01"]).until("step 30 ")
    first = member(job.name, 0)
    assert first is not None
    os.kill(first.mpirun, signal.SIGKILL)
    (incident,) = found(job.finish())
    assert (incident.what, incident.level) == (["mpirun lost"], Level.NEW_WORLD)
    assert (incident.was[:2], incident.epoch[:2]) == ((0, 1), (0, 2)) and incident.end is not None


@pytest.mark.jobs
def test_another_launcher_forms_a_new_world(job: Job) -> None:
    job.start("-n", "2", script=[SCRIPT, "steps=120", "pause=0.01"]).until("step 30 ")
    assert job.process is not None
    job.process.kill()
    job.output += job.process.communicate()[0]
    (incident,) = found(job.start("--attach", job.name, script=[], name=False).finish())
    assert (incident.level, incident.was.attempt, incident.epoch.attempt) == (Level.NEW_WORLD, 0, 0)
    assert [event.why for event in read(job.path) if isinstance(event, Formed)] == [Why.BEGIN, Why.ATTACHED]
