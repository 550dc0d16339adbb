"""Whole jobs whose totals stay in slices, in the buffers of all members, while processes are killed for real."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshmend.job.shm.sliced import SlicedTotals
from meshmend.testing import Fault
from tests.jobs.jobs import SCRIPT, Job

WIDE = SCRIPT.with_name("wide.py")
SHRINK = ["--on-failure", "shrink"]


def kill(rank: int, step: int, point: str = "compute", kind: str = "kill") -> Fault:
    return Fault(rank=rank, step=step, point=point, kind=kind)


def alone(*options: str) -> str:
    command = [sys.executable, str(WIDE), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.split("weights ")[1].split()[0]


@pytest.mark.parametrize(
    ("words", "faults", "survivors"),
    [
        ([*SHRINK, "-n", "4"], [kill(0, 4, "add"), kill(1, 6, "take"), kill(3, 6, "commit")], 1),
        pytest.param(
            [*SHRINK, "-n", "4"],
            [kill(0, 4, "take", "courier"), kill(3, 4, "take", "courier")],
            2,
            marks=pytest.mark.jobs,
        ),
        pytest.param([*SHRINK, "-n", "3"], [kill(2, 4), kill(1, 8, "allreduce")], 1, marks=pytest.mark.jobs),
        pytest.param(
            [*SHRINK, "-n", "4"],
            [kill(0, 4, "add", "courier"), kill(1, 4, "shrink"), kill(2, 8, "take")],
            1,
            marks=pytest.mark.jobs,
        ),
        pytest.param([*SHRINK, "-n", "3"], [kill(1, 5, "commit", "flip")], 2, marks=pytest.mark.jobs),
        pytest.param(
            ["--on-failure", "spare", "-n", "3", "--spares", "2"],
            [kill(1, 4, "take"), kill(0, 4, "state")],
            3,
            marks=pytest.mark.jobs,
        ),
    ],
)
def test_weights_are_bit_identical_whoever_dies(
    job: Job, words: list[str], faults: list[Fault], survivors: int
) -> None:
    job.faults = faults
    job.run(*words, script=[WIDE])
    assert job.status == 0, job.output
    assert job.weights == [alone()] * survivors, job.output
    job.assert_clean()


def test_a_sharded_job_after_it_has_totals_of_its_own(job: Job) -> None:
    """Its couriers say nothing of where totals are, and must not seem to have said what those before them did."""
    job.run("-n", "2", script=[WIDE, "steps=3", "sharded=7"])
    assert job.status == 0, job.output
    assert job.weights == [alone("steps=3", "sharded=7")] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_a_replacement_reads_slices_too(job: Job) -> None:
    job.faults = [kill(1, 5, "add"), kill(0, 9, "take")]
    job.run("-n", "3", script=[WIDE, "steps=1000000", "crowd=3"])
    assert job.status == 0, job.output
    assert len(job.weights) == 3 and len(set(job.weights)) == 1, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_float_sums_have_the_bits_of_one_group_whichever_way_they_take(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("off", "stand-in"):
        monkeypatch.setenv("MESHMEND_DEVICE_MEMORY", place)
        job.start("-n", "3", script=[WIDE, "reduction=float"], name=place == "off")
        job.finish()
    assert len(job.weights) == 6 and len(set(job.weights)) == 1, job.output


def test_it_is_this_way_that_they_take(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    """Where a worker that reads slices exits, no worker is left: so the jobs above read them."""
    assert callable(SlicedTotals.total)
    monkeypatch.setenv("PYTHONPATH", str(job.folder))
    (job.folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'meshmend.job.worker' in sys.orig_argv:\n"
        "    import os\n"
        "    from meshmend.job.shm import sliced\n"
        "    def never(self, round):\n"
        "        print('read in slices', flush=True)\n"
        "        os._exit(3)\n"
        "    sliced.SlicedTotals.total = never\n"
    )
    job.run(*SHRINK, "-n", "2", script=[WIDE])
    assert job.status != 0 and job.output.count("read in slices") == 2, job.output
