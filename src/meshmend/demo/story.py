"""The play: the same training twice, once undisturbed and once with three kills, and then both weights side by side.

1. `digits.py` alone, in one process.
2. The same on four workers. One is killed in an all-reduce, another while that is being repaired, and mpirun when both
   have been replaced.
3. The audit of the second run, a picture of it, and whether everything is as promised.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from meshmend import report
from meshmend.base.processes import kill
from meshmend.base.units import duration_text
from meshmend.demo.screen import Screen
from meshmend.errors import JobError
from meshmend.job.shm.inspect import Member, member
from meshmend.telemetry import Component, Event, Formed, Log, Struck, folder_of, follow, read
from meshmend.testing import fail_at

SCRIPT = Path(__file__).with_name("digits.py")
NEEDS = {"jax": "jax", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}
WORKERS, STEPS = 4, 1000
FIRST, SECOND, SURVIVOR = 2, 0, 1
"""The workers to kill, and one that is left alone."""
STRIKE = 50
"""The step in which they are killed."""
AGAIN = 40
"""Steps that all workers take part in again before mpirun is killed."""
LATEST = STEPS * 3 // 4
"""The step in which mpirun is killed in any case, even if newcomers are slow to start."""
LEAST = 95.0
"""Test accuracy that is promised, in percent."""
POLL = 0.05
"""Seconds between two looks at the run."""
GRACE = 5.0
"""Seconds that a run has to stop by itself when it is told to."""
STEP = re.compile(  # for the progress bar alone: a line that it does not know is shown as it is
    r"(?:\[\d+\] )?step (\d+)(?: of \d+)?  loss (\S+)  (\d+) worker"
)
EVERY_STEP = {"MESHMEND_LOG_EVERY": "0"}
"""The progress bar follows the steps one by one."""


@dataclass
class Outcome:
    """What came of a training, by each of its workers that reached the end."""

    status: int = 0
    weights: list[str] = field(default_factory=list)
    accuracy: float = 0.0
    """In percent."""

    def take(self, results: Path) -> None:
        """Take in the files that the workers have written."""
        for path in sorted(results.iterdir()):
            found = json.loads(path.read_text())
            self.accuracy = 100 * found["accuracy"]
            self.weights.append(found["weights"])


def demo(folder: Path | str = ".") -> int:
    """Show it; the run and a picture are left in the folder. 0 if all was as promised, 130 if it was stopped."""
    missing = [name for module, name in NEEDS.items() if find_spec(module) is None]
    if missing:
        raise JobError(f"meshmend demo needs {', '.join(missing)}: pip install 'meshmend[demo]'")
    try:
        return _play(Path(folder), f"{time.strftime('demo-%m%d-%H%M%S')}-{os.getpid()}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _play(folder: Path, run: str) -> int:
    begin = time.monotonic()
    script = [str(SCRIPT), "--steps", str(STEPS)]
    print(f"1. undisturbed, in one process: python {' '.join(script)}", flush=True)
    alone = _undisturbed([sys.executable, *script], folder)
    if alone.status:
        raise JobError(f"the undisturbed training ended with status {alone.status}; its output is above")
    words = ["run", "-n", str(WORKERS), "--name", run, *script]
    print(f"\n2. on {WORKERS} workers: meshmend {' '.join(words)}")
    print(
        f"   worker {FIRST} is killed in the all-reduce of step {STRIKE}, worker {SECOND} while that is being repaired,"
    )
    print("   and mpirun when both are back", flush=True)
    with (
        fail_at(rank=FIRST, step=STRIKE, point="allreduce"),
        fail_at(rank=SECOND, step=STRIKE, point="shrink"),
    ):
        disturbed = _disturbed([sys.executable, "-P", "-m", "meshmend", *words], folder, run)
    if not disturbed.weights:
        raise JobError(f"the training on workers ended with status {disturbed.status}; its output is above")
    print("\n3. what became of it\n", flush=True)
    wrong = _verdict(alone, disturbed, folder, run)
    print(f"\n{duration_text(time.monotonic() - begin)} in all. Look again: meshmend audit {run}")
    for sentence in wrong:
        print(f"NOT as promised: {sentence}")
    return 1 if wrong else 0


def _undisturbed(command: Sequence[str], folder: Path) -> Outcome:
    with tempfile.TemporaryDirectory() as results:
        with _running([*command, "--results", results], folder) as process, Screen(STEPS) as screen:
            _follow(process, screen)
        return _outcome(process, results)


def _disturbed(command: Sequence[str], folder: Path, run: str) -> Outcome:
    with tempfile.TemporaryDirectory() as results:
        with _running([*command, "--results", results], folder) as process, Screen(STEPS) as screen:
            threading.Thread(target=_strike, args=[process, screen, folder, run], name="strike", daemon=True).start()
            _follow(process, screen)
        return _outcome(process, results)


def _outcome(process: subprocess.Popen[str], results: str) -> Outcome:
    outcome = Outcome(process.returncode)
    outcome.take(Path(results))
    return outcome


def _follow(process: subprocess.Popen[str], screen: Screen) -> None:
    """Show a training's output."""
    for line in _output(process):
        if match := STEP.match(line):
            screen.step(int(match[1]), float(match[2]), int(match[3]))
        else:
            screen.say(line.removeprefix("meshmend: "))


@dataclass
class Cue:
    """Decides by the run's events when mpirun is to be killed: once both victims have been replaced for a while."""

    victims: set[int] = field(default_factory=set)
    back: int | None = None
    """The step in which a world with all workers was seen."""

    def take(self, events: Sequence[Event], step: int) -> bool:
        """Take in new events, as of this step; return whether it is time."""
        for event in events:
            if isinstance(event, Struck) and event.rank in (FIRST, SECOND):
                self.victims.add(event.rank)
            complete = isinstance(event, Formed) and len(event.ranks) == WORKERS
            if complete and len(self.victims) == 2 and self.back is None:
                self.back = step
        return step >= LATEST or (self.back is not None and step >= self.back + AGAIN)


def _strike(process: subprocess.Popen[str], screen: Screen, folder: Path, run: str) -> None:
    """Kill mpirun at the cue; leave a run alone that ends before."""
    cue, events = Cue(), None
    while process.poll() is None:
        if (survivor := member(run, SURVIVOR)) is not None:
            events = events or follow(folder / folder_of(run))
            if cue.take(events.poll(), survivor.step):
                screen.say(f"killing mpirun (process {survivor.mpirun}) in step {survivor.step + 1}")
                return _kill_mpirun(survivor, folder)
        time.sleep(POLL)
    return None


def _kill_mpirun(survivor: Member, folder: Path) -> None:
    struck = Struck(epoch=survivor.epoch, what=Component.MPIRUN, fault="mpirun", step=survivor.step)
    Log(folder / folder_of(survivor.run), "demo").write(struck)
    kill(survivor.mpirun)


def _verdict(alone: Outcome, disturbed: Outcome, folder: Path, run: str) -> list[str]:
    """Show the audit, the weights and the picture; a sentence for each thing that is not as promised."""
    where = folder / folder_of(run)
    events = read(where)
    account, incidents = report.check(events), report.incidents(events)
    kills = [event for event in events if isinstance(event, Struck)]
    picture = folder / "demo.png"
    report.draw_loss(events, picture)
    same = len(alone.weights) == 1 and {*disturbed.weights} == {*alone.weights}
    print(report.render(account, incidents))
    print(f"\nweights, undisturbed   {' '.join(alone.weights) or 'none'}")
    print(f"weights, with {len(kills)} kills  {' '.join(sorted({*disturbed.weights})) or 'none'}")
    print(f"the same, bit for bit, in all {len(disturbed.weights)} workers at the end" if same else "NOT the same")
    print(f"accuracy on samples it never saw: {disturbed.accuracy:.2f} % (undisturbed: {alone.accuracy:.2f} %)")
    print(f"picture: {picture}   the run: {where}", flush=True)
    promises = {
        f"the run with kills ended with status {disturbed.status}": disturbed.status == 0,
        f"{len(kills)} kills took place, and not 3": len(kills) == 3,
        f"there are {len(incidents)} incidents, and not 2 or more": len(incidents) >= 2,
        f"{account.steps} steps were done, and not {STEPS}": account.steps == STEPS,
        f"the audit has {len(account.findings)} findings": account.clean,
        "the weights differ": same,
        f"the accuracy is below {LEAST} %": disturbed.accuracy >= LEAST,
    }
    return [sentence for sentence, kept in promises.items() if not kept]


def _output(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")


@contextmanager
def _running(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A training that ends with us. In its own session, or a Ctrl-C would reach it twice."""
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True, env={**os.environ, **EVERY_STEP},
    )  # fmt: skip
    try:
        yield process
        process.wait()
    finally:
        # meshmend run stops with a checkpoint after one signal, and immediately after a second.
        for how in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if process.poll() is not None:
                break
            process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE)
