"""`meshmend chaos` beside a run: whatever it strikes, the run ends with the weights of an undisturbed one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from meshmend.telemetry import Struck, read
from tests.jobs.jobs import DEADLINE, SCRIPT, Job

pytestmark = pytest.mark.jobs
KINDS = "kill,hang,courier,mpirun,flip"


def chaos(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshmend", "chaos", *words, job.name]
    return subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=DEADLINE)


def test_whatever_it_strikes_nothing_is_lost(job: Job, undisturbed: Callable[..., str]) -> None:
    options = ["steps=400", "pause=0.02"]
    job.start("-n", "4", script=[SCRIPT, *options]).until("step 20 ")
    ran = chaos(job, "--every", "0.3", "--count", "8", "--kinds", KINDS, "--seed", "1")
    assert ran.returncode == 0, ran.stderr
    job.finish()
    assert job.status == 0, job.output
    assert set(job.weights) == {undisturbed(*options)}, job.output
    assert len([event for event in read(job.path) if isinstance(event, Struck)]) >= 6
    job.assert_clean()


def test_mistakes_are_one_sentence(job: Job) -> None:
    def refused(*words: str) -> str:
        ran = chaos(job, *words)
        assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran.stderr
        return ran.stderr

    assert repr(job.name) in refused()  # there is no such run
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    assert repr(job.name) in refused()  # it has ended
    said = refused("--kinds", "flood")
    assert "flood" in said and all(kind in said for kind in KINDS.split(","))
