"""A job whose files of events are full again and again, with workers that are killed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend import report
from meshmend.telemetry import Events, Steps
from meshmend.telemetry.folder import segments
from meshmend.testing import Fault
from tests.jobs.jobs import SCRIPT, Job

STEPS = 400


@pytest.mark.jobs
def test_a_compacted_ledger_of_real_workers_is_clean(job: Job, tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(f"from meshmend.telemetry import folder\nfolder.FULL = 8000\n{SCRIPT.read_text()}")
    job.faults = [Fault(rank=1, step=step, point="compute", kind="kill") for step in (90, 220)]
    job.run("-n", "3", script=[script, f"steps={STEPS}"])
    assert job.status == 0 and f"done: {STEPS} steps" in job.output, job.output
    job.assert_clean()
    assert all(len(files) > 1 for writer, files in segments(job.path, "worker-*").items())
    found = [event for event in Events(job.path, "worker-0") if isinstance(event, Steps)]
    assert sum(event.count for event in found) > STEPS / 2
    account = report.check(Events(job.path))
    assert account.clean and account.steps == STEPS
    assert sum("worker 1" in what for one in report.incidents(Events(job.path)) for what in one.what) >= 1
