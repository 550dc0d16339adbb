"""Where the checkpoints of a run are: each job of a script has its own folder.

RUN/checkpoints/             the first job's
RUN/job-2/checkpoints/       the second one's, where the script has several, one after another
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from meshmend.errors import FormatError
from meshmend.job.state.safetensors import latest


def folder_of(run: Path, job: int) -> Path:
    """The folder of one job's checkpoints."""
    return (run if job == 1 else run / f"job-{job}") / "checkpoints"


def job_of(checkpoint: Path) -> int:
    """Return the job that a checkpoint belongs to."""
    match = re.fullmatch(r"job-([2-9]|[1-9]\d{1,8})", checkpoint.parent.parent.name, re.ASCII)
    return int(match[1]) if match else 1


def jobs_of(run: Path) -> list[int]:
    """The jobs that may have checkpoints, the last first."""
    found = {job_of(path / "any") for path in run.glob("job-*/checkpoints")}
    return sorted(found | {1}, reverse=True)


def newest(run: Path, passed: Callable[[FormatError], None] = lambda _: None) -> Path | None:
    """The newest checkpoint that is whole, of the last job that has one; `passed` is called for each damaged one."""
    for job in jobs_of(run):
        if (found := latest(folder_of(run, job), passed)) is not None:
            return found
    return None
