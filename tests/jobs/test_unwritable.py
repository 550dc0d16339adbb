"""A ledger that cannot be written for another reason than a full disk: it is said, waited for, and never for ever."""

from __future__ import annotations

import os
import re
import resource
import signal
from errno import EDQUOT, EFBIG

from meshmend.base.status import DONE, HALTED
from meshmend.job.state.safetensors import latest
from meshmend.run.console import announcement
from meshmend.run.news import Written
from tests.jobs.facts import deaths
from tests.jobs.jobs import SCRIPT, Job

QUOTA = f"""
import errno, os, sys
from meshmend.telemetry import folder
write = os.write
class Limited:
    def __getattr__(self, name):
        return getattr(os, name)
    def write(self, file, data):
        full = b'"step":9,' in bytes(data) and os.environ["MESHMEND_RANK"] == "1" and not os.path.exists("open")
        if full:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return write(file, data)
folder.os = Limited()
sys.path.insert(0, {str(SCRIPT.parent)!r})
import regression
regression.main()
"""


def limit_files(job: Job, nbytes: int) -> None:
    """Let no file of the workers grow by more than so many bytes; -1: without a limit again."""
    [numbers] = re.findall(r"workers 0 and 1 are processes (\d+) (\d+)", job.output)
    size = max(path.stat().st_size for path in (job.path / "events").iterdir())
    for number in map(int, numbers):
        most = resource.prlimit(number, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(number, resource.RLIMIT_FSIZE, (size + nbytes if nbytes >= 0 else most, most))


def test_workers_whose_files_may_not_grow_are_told_and_stop_when_they_are_asked_to(job: Job) -> None:
    job.start("-n", "2", script=(SCRIPT, "steps=1000000", "pause=0.01")).until("step 5")
    assert job.process is not None
    limit_files(job, 2000)
    job.until("cannot write").process.send_signal(signal.SIGTERM)
    job.finish()
    assert job.status == HALTED and job.output.count("cannot write") == 1, job.output
    assert f"workers 0 and 1 cannot write to {job.path} ({os.strerror(EFBIG)})" in job.output
    assert "can write" not in job.output and latest(job.path / "checkpoints") is not None
    job.assert_clean()


def test_a_quota_is_waited_for(job: Job) -> None:
    script = job.folder / "made.py"
    script.write_text(QUOTA)
    job.start("-n", "2", script=(script,)).until(f"worker 1 cannot write to {job.path} ({os.strerror(EDQUOT)})")
    job.open_gate()
    job.until(announcement(Written((1,), job.path))).finish()
    assert job.status == DONE and deaths(job) == [] and job.output.count("cannot write") == 1, job.output
    job.assert_clean()
