"""Workers that share a cache and read ahead train to the bits of one that does neither, whoever dies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from meshmend.telemetry import Committed, read
from meshmend.testing import Fault
from tests.jobs.jobs import Job

SCRIPT = Path(__file__).with_name("decoded.py")
SHRINK = ["--on-failure", "shrink"]


@cache
def plain(folder: Path) -> str:
    """Alone, without a cache, each lane read when it is asked for."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "cache=none", "ahead=0"],
        cwd=folder, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return re.findall(r"weights (\w+) after", done.stdout)[0]


def test_workers_share_what_one_has_decoded_and_a_death_changes_no_bit(job: Job, tmp_path: Path) -> None:
    job.faults = [Fault(rank=1, step=6)]
    job.run(*SHRINK, "-n", "3", script=[SCRIPT])
    assert job.status == 0, job.output
    lines = (job.folder / "decoded").read_text().splitlines()
    assert job.weights == [plain(tmp_path)] * 2, job.output
    assert "sample 17 cannot be read (it is damaged)" in job.output and "input stall" in job.output
    times = Counter(int(line.split()[1]) for line in lines)
    assert {*times} == {*range(200)}
    # 600 without a cache. Some are decoded by two at once, or for a lane that another worker then computes.
    assert sum(times.values()) < 400
    assert all(event.stall > 0 for event in read(job.path) if isinstance(event, Committed))
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("words", "faults", "options", "survivors"),
    [
        (["-n", "2"], [], ("cache=disk",), 2),
        ([*SHRINK, "-n", "3"], [Fault(rank=0, step=0), Fault(rank=2, step=9, point="allreduce")], ("cache=disk",), 1),
        ([*SHRINK, "-n", "4"], [Fault(rank=1, step=2), Fault(rank=3, step=8)], ("cache=none",), 2),
        (["--on-failure", "spare", "-n", "2", "--spares", "1"], [Fault(rank=1, step=4)], (), 2),
    ],
)
def test_any_deaths_and_any_cache(
    job: Job, tmp_path: Path, words: list[str], faults: list[Fault], options: tuple[str, ...], survivors: int
) -> None:
    (job.folder / "disk").mkdir(exist_ok=True)
    job.faults = faults
    job.run(*words, script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert job.weights == [plain(tmp_path)] * survivors, job.output
    assert [*(job.folder / "disk").iterdir()] == []
    job.assert_clean()
