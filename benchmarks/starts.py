"""From `meshmend run` to the first step, and from two close kills to the next commit, for more and more workers.

    python benchmarks/starts.py                          # 4, 16 and 32 workers, 5 runs each: medians and spread
    python benchmarks/starts.py --workers 64 --runs 3
    python benchmarks/starts.py --workers 16 --hosts 16  # one on each of 16 network namespaces, with a real sshd

The script of the workers imports numpy and nothing else, and its model has four weights: what is measured is ours,
Python's and Open MPI's. Every time comes from the events of the run. Below the times stands what limits them: the
processor time that each kind of process has used by the first step, and the phases of the repair. On a machine with
too few cores, a start takes all processor time together, divided by the cores.

Hosts need root and openssh-server; they live in the room of `benchmarks/chaos`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "chaos"))
import room
from bed import QUIET, Bed, Namespaces

from meshmend import report
from meshmend.telemetry import Committed, Event, Events, Started, read

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
TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {"meshmend.job.courier": "couriers", "meshmend.job.worker": "workers", "meshmend.run.agent": "agents"}


@dataclass
class Start:
    """What one run took."""

    first: float
    """Seconds to the first step."""
    again: float
    """Seconds from two kills to the next commit."""
    spent: dict[str, float]
    """Seconds of processor time by the first step, by kind of process."""
    phases: dict[str, float]
    """Seconds of each phase of the repair."""


def measure(bed: Bed, name: str) -> Start:
    """Start a run, kill two of its workers, and end it."""
    script = bed.home / "train.py"
    script.write_text(SCRIPT)
    words = ["run", *bed.places(), "--on-failure", "shrink", "--name", name, str(script)]
    usual = {name: value for name, value in os.environ.items() if name not in QUIET}  # as a user would start it
    began = time.time()
    with (bed.home / "log").open("ab") as log:
        run = subprocess.Popen(
            bed.line([sys.executable, "-P", "-m", "meshmend", *words]), stdout=log, stderr=log, cwd=bed.home, env=usual
        )
    try:
        events = bed.disk / name
        first = _wait(lambda: _committed(events, 0)).time - began
        spent = processor_time(run.pid)
        pids = [event.process for event in read(events, "launcher") if isinstance(event, Started)]
        now = time.time()
        for process in pids[-2:]:
            os.kill(process, signal.SIGKILL)
        again = _wait(lambda: _without(events, bed.workers, now)).time - now
    except BaseException:
        print((bed.home / "log").read_text(errors="replace")[-4000:])
        raise
    finally:
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        run.wait(DEADLINE)
    phases = Counter[str]()
    for incident in report.incidents(Events(events)):
        phases.update(incident.times)
    return Start(first, again, spent, dict(phases))


def processor_time(launcher: int) -> dict[str, float]:
    """Seconds that each kind of process of a run has used: of all processes of the room, or of all that it started."""
    spent = Counter[str]()
    for process in everything() if room.inside() else descendants(launcher):
        with contextlib.suppress(OSError):
            spent[kind_of(process)] += sum(map(int, fields(process)[11:13])) / TICKS
    return dict(spent)


def kind_of(process: int) -> str:
    """What a process is, by its command line."""
    words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if os.path.basename(words[0]) in ("mpirun", "prted", "prterun"):
        return "mpirun"
    if "meshmend" in words and "run" in words:
        return "launcher"
    return next((KINDS[word] for word in words if word in KINDS), "others")


def fields(process: int) -> list[str]:
    """Those of /proc/…/stat, from its state on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def everything() -> list[int]:
    """All processes but this one."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if int(path.name) != os.getpid()]


def descendants(of: int) -> list[int]:
    """A process and all that it has started."""
    children: dict[int, list[int]] = {}
    for process in everything():
        with contextlib.suppress(OSError):
            children.setdefault(int(fields(process)[1]), []).append(process)
    found = [of]
    for one in found:
        found += children.get(one, [])
    return found


def _wait(found: Callable[[], Event | None]) -> Event:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if (event := found()) is not None:
            return event
        time.sleep(0.05)
    raise SystemExit("nothing came")


def _committed(folder: Path, step: int) -> Event | None:
    if not (folder / "events").exists():
        return None
    return next((e for e in read(folder, "worker-0") if isinstance(e, Committed) and e.step >= step), None)


def _without(folder: Path, workers: int, since: float) -> Event | None:
    """The first step that was committed by two fewer."""
    for event in read(folder, "worker-0"):
        if isinstance(event, Committed) and event.time > since and len(event.by) <= workers - 2:
            return event
    return None


def spread(values: Iterable[float]) -> str:
    """The median, with the lowest and the highest."""
    found = sorted(values)
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def medians(of: list[dict[str, float]], scale: float, unit: str) -> str:
    """Of each name that occurs in any."""
    names = dict.fromkeys(name for one in of for name in one)
    middle = {name: statistics.median(one.get(name, 0.0) for one in of) * scale for name in names}
    return ", ".join(f"{name} {value:.1f}" for name, value in middle.items()) + f" {unit}"


def show(bed: Bed, runs: int) -> None:
    """Measure, and print."""
    found = [measure(bed, f"starts-{bed.workers}-{run}") for run in range(runs)]
    hosts = f" on {len(bed.hosts)} hosts" if len(bed.hosts) > 1 else ""
    first, again = spread(one.first for one in found), spread(one.again for one in found)
    print(f"{bed.workers} workers{hosts}: first step {first}, two kills to the next commit {again}")
    print(f"    processor time by the first step: {medians([one.spent for one in found], 1, 's')}")
    print(f"    the repair: {medians([one.phases for one in found], 1000, 'ms')}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 16, 32])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=1)
    given = parser.parse_args()
    if given.hosts > 1 and not room.inside():
        return room.enter(max(given.workers))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; seconds, medians of {given.runs} runs (spread)")
    for workers in given.workers:
        if workers % given.hosts:
            parser.error(f"{workers} workers cannot be divided among {given.hosts} hosts")
        with tempfile.TemporaryDirectory() as folder:
            if given.hosts == 1:
                show(Bed(Path(folder), workers), given.runs)
                continue
        bed = Namespaces(room.home(), workers, given.hosts)
        try:
            show(bed, given.runs)
        finally:
            bed.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
