"""The play: the same training twice, once undisturbed and once with three kills, and then both weights side by side.

1. `digits.py` alone, in one process.
2. The same on four workers. One is killed in an all-reduce, another while that is being repaired, and mpirun when both
   have been replaced.
3. The audit of the second run, a picture of it, and whether everything is as promised.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
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
from meshmend.job.shm.inspect import member
from meshmend.telemetry import Log, Part, Struck, folder_of, read
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
GRACE = 5.0
"""Seconds that a run has to stop by itself when it is told to."""
STEP = re.compile(r"(?:\[\d+\] )?step (\d+)(?: of \d+)?  loss (\S+)  (\d+) worker")
EVERY_STEP = {"MESHMEND_LOG_EVERY": "0"}
"""The picture and the kills follow the steps one by one."""
RESULT = re.compile(r"(?:\[\d+\] )?test accuracy ([\d.]+)%, weights (\w{64})")


@dataclass
class Outcome:
    """What a training printed at its end, once for each of its workers."""

    status: int = 0
    weights: list[str] = field(default_factory=list)
    accuracy: float = 0.0


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
        raise JobError(f"the undisturbed training ended with status {alone.status}, and what it said is above")
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
        disturbed = _disturbed([sys.executable, "-m", "meshmend", *words], folder, run)
    if not disturbed.weights:
        raise JobError(f"the training on workers ended with status {disturbed.status}, and what it said is above")
    print("\n3. what became of it\n", flush=True)
    wrong = _verdict(alone, disturbed, folder, run)
    print(f"\n{duration_text(time.monotonic() - begin)} in all. Look again: meshmend audit {run}")
    for sentence in wrong:
        print(f"NOT as promised: {sentence}")
    return 1 if wrong else 0


def _undisturbed(command: Sequence[str], folder: Path) -> Outcome:
    outcome = Outcome()
    with _running(command, folder) as process, Screen(STEPS) as screen:
        for line in _output(process):
            _follow(line, screen, outcome)
    outcome.status = process.returncode
    return outcome


def _disturbed(command: Sequence[str], folder: Path, run: str) -> Outcome:
    outcome = Outcome()
    fewer, again, struck = False, 0, False
    with _running(command, folder) as process, Screen(STEPS) as screen:
        for line in _output(process):
            found = _follow(line, screen, outcome)
            if found is None or struck:
                continue
            step, workers = found
            fewer |= workers < WORKERS
            again += fewer and workers == WORKERS
            if again >= AGAIN or step >= LATEST:
                struck = True
                screen.say(f"killing mpirun (process {_kill_mpirun(folder, run)}) in step {step + 1}")
    outcome.status = process.returncode
    return outcome


def _follow(line: str, screen: Screen, outcome: Outcome) -> tuple[int, int] | None:
    """Take in a line of a training's output; return the step and the number of workers, if it is about a step."""
    if match := STEP.match(line):
        step, workers = int(match[1]), int(match[3])
        screen.step(step, float(match[2]), workers)
        return step, workers
    if match := RESULT.match(line):
        outcome.accuracy = float(match[1])
        outcome.weights.append(match[2])
    elif line.startswith("meshmend: world 1 "):
        screen.say("world 1 (begin)")  # without the whole mpirun line
    else:
        screen.say(line.removeprefix("meshmend: "))
    return None


def _kill_mpirun(folder: Path, run: str) -> int:
    survivor = member(run, SURVIVOR)
    if survivor is None:
        return 0
    struck = Struck(epoch=survivor.epoch, what=Part.MPIRUN, fault="mpirun", step=survivor.step)
    Log(folder / folder_of(run), "demo").write(struck)
    kill(survivor.mpirun)
    return survivor.mpirun


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
