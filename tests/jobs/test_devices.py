"""Whole jobs that sum in device memory, with the host's memory in the place of a device's, killed for real."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshmend.job.device.places import told
from meshmend.job.shm.records import Way
from meshmend.testing import Fault
from tests.jobs.jobs import Job

SHRINK = ["--on-failure", "shrink"]
Undisturbed = Callable[..., str]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", "stand-in")


def kill(rank: int, step: int, point: str = "compute", kind: str = "kill") -> Fault:
    return Fault(rank=rank, step=step, point=point, kind=kind)


@pytest.mark.parametrize(
    ("words", "faults", "survivors"),
    [
        ([*SHRINK, "-n", "4"], [kill(0, 5, "add"), kill(1, 7, "take"), kill(3, 7, "add")], 1),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "take", "courier"), kill(3, 5, "take", "courier")], 2),
        pytest.param([*SHRINK, "-n", "3"], [kill(2, 5), kill(1, 9, "allreduce")], 1, marks=pytest.mark.jobs),
        pytest.param(
            [*SHRINK, "-n", "4"],
            [kill(0, 5, "add", "courier"), kill(1, 5, "shrink"), kill(2, 9, "take")],
            1,
            marks=pytest.mark.jobs,
        ),
        pytest.param([*SHRINK, "-n", "3"], [kill(1, 6, "commit", "flip")], 2, marks=pytest.mark.jobs),
        pytest.param(
            ["--on-failure", "spare", "-n", "3", "--spares", "2"],
            [kill(1, 4, "add"), kill(0, 4, "state")],
            3,
            marks=pytest.mark.jobs,
        ),
    ],
)
def test_weights_are_bit_identical_whoever_dies(
    job: Job, words: list[str], faults: list[Fault], survivors: int, undisturbed: Undisturbed
) -> None:
    job.faults = faults
    job.run(*words)
    assert job.status == 0, job.output
    assert told(Way.DEVICE) in job.output
    assert job.weights == [undisturbed()] * survivors, job.output
    job.assert_clean()
