"""Jobs of a script, one after another: their numbers, what is refused, and where each keeps its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from meshmend.errors import JobError
from meshmend.job.checkpoints.folders import folder_of, job_of, jobs_of, newest
from meshmend.job.sequence import End, Sequence
from meshmend.job.session.solo import Passing
from meshmend.job.state.safetensors import save


def test_jobs_that_follow_one_another_are_numbered() -> None:
    script = Sequence()
    for number in (1, 2, 3):
        assert script.begin() == number
        script.end(End.LEFT)


@pytest.mark.parametrize("how", [End.OPEN, End.RAISED])
def test_a_job_within_another_or_after_an_exception_is_refused(how: End) -> None:
    script = Sequence()
    script.begin()
    script.end(how)
    with pytest.raises(JobError):
        script.begin()


def test_a_fork_counts_its_own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Sequence()
    script.begin()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert script.begin() == 1


def test_each_job_has_its_own_checkpoints_and_the_last_job_has_the_newest(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    paths = {}
    for job, step in ((1, 30), (2, 4), (12, 2)):
        paths[job] = save(folder_of(tmp_path, job), [("w", np.ones(2))], step=step, about={})
        assert newest(tmp_path) == paths[job]
    assert jobs_of(tmp_path) == [12, 2, 1]
    assert {job: job_of(path) for job, path in paths.items()} == {1: 1, 2: 2, 12: 12}


def test_a_job_that_the_run_has_done_has_no_more_sums() -> None:
    passing = Passing(lanes=4, workers=3, rank=2, job=1)
    assert not passing.first
    assert passing.exchange("gather", b"mine") == {2: b"mine"}
    with pytest.raises(JobError):
        next(passing.round(lambda _: None))  # type: ignore[arg-type, return-value]
