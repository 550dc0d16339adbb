"""Whether a long run grows: memory and open files of its processes, its shared memory and its folder, while it runs.

    python benchmarks/weeks.py growth [--steps 100000] [--workers 2]
    python benchmarks/weeks.py growth --worlds 1000 [--minutes M]        mpirun is killed again and again

Growth is a line through the samples of the last two thirds: caches and pools fill up in the beginning. Where anything
but the run's folder grows by more than `MOST` on that line, the status is 1. So a run must be long enough: a worker's
memory grows once when its first file of events is compacted, some 25,000 steps after the start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from meshmend.base.processes import kill
from meshmend.base.terminal import table
from meshmend.errors import SegmentGone
from meshmend.job.shm.home import folder_of
from meshmend.job.shm.inspect import Member, members

SCRIPT = """
import sys
import numpy as np
import meshmend as mm

with mm.Job(np.zeros(64), batch=4, lanes=4) as job:
    state = job.share(np.zeros(4, np.float32))
    for step in job.steps(int(sys.argv[1])):
        total = job.sum(lambda _: np.ones(4, np.float32))
        job.commit(state, loss=1.0)
"""
SAMPLES, FEW = 60, 6
STUCK = 120.0
MOST = {"kB": 1024.0, "files": 2.0}
"""What is no growth."""


@dataclass
class Sample:
    """What there is at one moment."""

    at: float
    """Steps or worlds so far."""
    values: dict[str, float] = field(default_factory=dict)


def private(process: int) -> float:
    """Memory that a process alone has, in kB."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(("Private_", "Swap:")))


def size_of(folder: Path) -> tuple[float, int]:
    """(kB on the disk, files) in a folder."""
    size = count = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_blocks / 2
                count += 1
    return size, count


def sample(at: float, run: str, launcher: int, found: list[Member], folder: Path) -> Sample | None:
    """Look at everything; None if somebody has just died."""
    values: dict[str, float] = {}
    processes = {"launcher": launcher, "worker": found[0].worker, "courier": found[0].courier}
    try:
        for name, process in processes.items():
            values[f"{name}, kB"] = private(process)
            values[f"{name}, files"] = len(os.listdir(f"/proc/{process}/fd"))
        values["shared memory, kB"], values["shared memory, files"] = size_of(folder_of(run))
    except (OSError, SegmentGone):
        return None
    values["run folder, kB"], values["run folder, files"] = size_of(folder)
    return Sample(at, values)


def watch(
    run: str, launcher: subprocess.Popen[bytes], folder: Path, end: float, latest: float, now: Callable[[], float]
) -> list[Sample]:
    """Take samples until there were so many steps or worlds."""
    samples: list[Sample] = []
    until, newest = time.monotonic() + STUCK, 0.0
    while newest < end and launcher.poll() is None and time.monotonic() < min(until, latest):
        time.sleep(0.05)
        at = now()
        if at > newest:
            newest, until = at, time.monotonic() + STUCK
        found = [one for one in members(run) if one.active and one.alive and one.has_courier]
        if found and at >= len(samples) * end / SAMPLES:
            taken = sample(at, run, launcher.pid, found, folder)
            samples += [taken] if taken is not None else []
    return samples


def show(samples: list[Sample], what: str, per: int) -> list[str]:
    """A table: at the beginning of what counts, at the end, and how much more for each so many steps or worlds.

    What has grown, in words.
    """
    settled = samples[len(samples) // 3 :]
    at = [one.at for one in settled]
    rows, grown = [], []
    for name in settled[0].values:
        values = [one.values[name] for one in settled]
        slope = float(np.polyfit(at, values, 1)[0]) * per
        more = slope / per * (at[-1] - at[0])
        if more > MOST[name.rpartition(" ")[2]] and not name.startswith("run folder"):
            grown.append(f"{name}: {more:+,.0f}")
        rows.append(
            [name, f"{samples[0].values[name]:,.0f}", f"{values[0]:,.0f}", f"{values[-1]:,.0f}", f"{slope:+.1f}"]
        )
    heads = [f"{len(samples)} samples", "first", f"at {at[0]:,.0f}", f"at {at[-1]:,.0f} {what}", f"per {per:,} {what}"]
    print(table(heads, rows))
    return grown


def growth(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        script = Path(temporary) / "train.py"
        script.write_text(SCRIPT)
        name = f"growth-{time.time_ns() % 10**9}"
        steps = 10**9 if args.worlds else args.steps + args.steps // 10
        command = [
            sys.executable,
            "-m",
            "meshmend",
            "run",
            "-n",
            str(args.workers),
            "--name",
            name,
            str(script),
            str(steps),
        ]
        with (Path(temporary) / "log").open("w") as log:
            run = subprocess.Popen(command, cwd=temporary, stdout=log, stderr=log)
        began = time.monotonic()
        latest = began + 60 * args.minutes
        try:
            folder = Path(temporary) / "runs" / name
            if args.worlds:
                samples = watch(name, run, folder, args.worlds, latest, Worlds(name).number)
            else:
                samples = watch(
                    name, run, folder, args.steps, latest, lambda: max([0, *(one.step for one in members(name))])
                )
            if len(samples) < FEW:
                sys.exit((Path(temporary) / "log").read_text()[-4000:] + f"\nonly {len(samples)} samples")
            grown = show(samples, "worlds" if args.worlds else "steps", 1000 if args.worlds else 100_000)
            print(f"{time.monotonic() - began:.0f} s")
            if samples[-1].at < (args.worlds or args.steps):
                sys.exit(f"only {samples[-1].at:,.0f} of {args.worlds or args.steps:,}")
            if grown:
                sys.exit("GROWS: " + "; ".join(grown))
        finally:
            run.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(120)
            run.kill()


class Worlds:
    """Ends one world after another, by killing its mpirun."""

    def __init__(self, run: str) -> None:
        self._run, self._struck, self._step = run, 0, 0

    def number(self) -> float:
        """How many there were; the newest is struck once it has done a step or two."""
        found = [one for one in members(self._run) if one.active and one.alive and one.has_courier]
        world = max((one.epoch.world for one in found), default=0)
        if found and world > self._struck and max(one.step for one in found) > self._step + 1:
            self._struck, self._step = world, max(one.step for one in found)
            kill(found[0].mpirun)
        elif found and world > self._struck and not self._step:
            self._step = max(one.step for one in found)
        return float(world)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command."""
    one = verbs.add_parser("growth")
    one.add_argument("--steps", type=int, default=100_000)
    one.add_argument("--worlds", type=int, default=0)
    one.add_argument("--workers", type=int, default=2)
    one.add_argument("--minutes", type=float, default=600, help="stop after so long in any case")
    one.set_defaults(verb=growth)
