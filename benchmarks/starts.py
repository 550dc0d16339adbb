"""From `meshmend run` to the first step, and from two close kills to the next commit, for more and more workers.

    python benchmarks/starts.py                  # 4, 16 and 32 workers, 5 runs each: medians and spread
    python benchmarks/starts.py --workers 4 --runs 3

The script of the workers imports numpy and nothing else, and its model has four weights: what is measured is ours,
Python's and Open MPI's. Every time comes from the events of the run. CPU seconds are those of all its processes, so
that a busy machine can be told from a slow start.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meshmend.telemetry import Committed, Event, Started, read

SCRIPT = """
import time
import numpy as np
import meshmend as mm

x = np.ones((256, 4), np.float32)
with mm.Job(x, batch=128, lanes=64, reduction="exact") as job:
    w = job.share(np.zeros(4, np.float32))
    for step in job.steps(1_000_000):
        w = w + job.sum(lambda lane: lane.sum(0)) / 1e6
        job.commit(w)
        time.sleep(0.01)
"""
DEADLINE = 300.0


def measure(workers: int, folder: Path, name: str) -> tuple[float, float, float]:
    """Seconds to the first step, and to the next commit after two kills; CPU seconds of the whole run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "meshmend", "run", "-n", str(workers), "--on-failure", "shrink", "--name", name]
    (folder / "train.py").write_text(SCRIPT)
    began = time.time()
    run = subprocess.Popen([*command, "train.py"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        events = folder / "runs" / name
        first = _wait(lambda: _committed(events, 0)).time - began
        pids = [event.process for event in read(events, "launcher") if isinstance(event, Started)]
        now = time.time()
        for process in pids[-2:]:
            os.kill(process, signal.SIGKILL)
        again = _wait(lambda: _without(events, workers, now)).time - now
    finally:
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        run.wait(DEADLINE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return first, again, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _wait(found: Callable[[], Event | None]) -> Event:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if (event := found()) is not None:
            return event
        time.sleep(0.05)
    raise SystemExit("nothing came")


def _committed(folder: Path, step: int) -> Event | None:
    if not folder.exists():
        return None
    return next((e for e in read(folder, "worker-0") if isinstance(e, Committed) and e.step >= step), None)


def _without(folder: Path, workers: int, since: float) -> Event | None:
    """The first step that was committed by two fewer."""
    for event in read(folder, "worker-0"):
        if isinstance(event, Committed) and event.time > since and len(event.by) <= workers - 2:
            return event
    return None


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 16, 32])
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; seconds, medians of {given.runs} runs (spread)")
    for workers in given.workers:
        with tempfile.TemporaryDirectory() as folder:
            found = [measure(workers, Path(folder), f"starts-{run}") for run in range(given.runs)]
        cells = [f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in zip(*found, strict=True)]
        print(
            f"{workers} workers: first step {cells[0]}, two kills to the next commit {cells[1]}, CPU {cells[2]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
