"""`meshmend run` with real workers, couriers and mpirun, really killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs
SCRIPT = Path(__file__).with_name("regression.py")
SHRINK = ["--on-failure", "shrink"]


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "meshmend", "run", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(job: subprocess.Popen[str]) -> str:
    try:
        output, _ = job.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
        pytest.fail(f"the run hung:\n{output}")
    return output


def weights(output: str) -> list[str]:
    return re.findall(r"weights (\w+) after", output)


@pytest.fixture(scope="module")
def undisturbed() -> str:
    alone = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=60)
    return weights(alone.stdout)[0]


@pytest.mark.parametrize(
    ("words", "survivors"),
    [
        (["-n", "2", str(SCRIPT)], 2),
        ([*SHRINK, "-n", "4", str(SCRIPT), "kill=2:5"], 3),
        ([*SHRINK, "-n", "4", str(SCRIPT), "kill=0:0"], 3),
        ([*SHRINK, "-n", "4", str(SCRIPT), "kill=1:7+3:7+0:9"], 1),
        ([*SHRINK, "-n", "2", "--spares", "1", str(SCRIPT), "kill=1:4"], 2),
    ],
)
def test_weights_are_bit_identical_whoever_dies(words: list[str], survivors: int, undisturbed: str) -> None:
    name = f"test-{os.getpid()}"
    job = start("--name", name, *words)
    output = finish(job)
    assert job.returncode == 0, output
    assert weights(output) == [undisturbed] * survivors, output
    assert leftovers(name) == []


def processes(pattern: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and re.search(
                pattern, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            ):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def leftovers(name: str) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"meshmend-{name}-*")]


def kill_when(job: subprocess.Popen[str], line: str, victim: Callable[[], list[int]]) -> str:
    """Read the run's output until a line is there, kill one process, and read on to the end."""
    assert job.stdout is not None
    seen = []
    deadline = time.monotonic() + 60
    for text in job.stdout:
        seen.append(text)
        if line in text or time.monotonic() > deadline:
            break
    for process in victim()[:1]:
        os.kill(process, signal.SIGKILL)
    return "".join(seen) + finish(job)


@pytest.mark.parametrize(
    ("what", "pattern", "survivors"),
    [("mpirun", r"prterun .* NAME ", 3), ("courier", r"^\S*python\S* -m meshmend.train.courier NAME ", 2)],
)
def test_mpirun_and_couriers_are_replaceable(what: str, pattern: str, survivors: int) -> None:
    name = f"test-{what}-{os.getpid()}"
    job = start(*SHRINK, "-n", "3", "--name", name, str(SCRIPT), "steps=400")
    output = kill_when(job, "step 50 ", lambda: processes(pattern.replace("NAME", name)))
    assert job.returncode == 0, output
    assert len(weights(output)) == survivors, output
    assert len(set(weights(output))) == 1
    assert ("world 2" in output) == (what == "mpirun")
    assert "after 400" in output
    assert processes(name) == []
    assert leftovers(name) == []


def test_a_dead_worker_is_replaced() -> None:
    name = f"test-replace-{os.getpid()}"
    job = start("-n", "3", "--name", name, str(SCRIPT), "steps=300", "pause=0.03", "kill=1:5")
    output = finish(job)
    assert job.returncode == 0, output
    assert "worker 1 joins" in output, output
    assert len(weights(output)) == 3, output
    assert len(set(weights(output))) == 1
    assert leftovers(name) == []


def test_a_worker_that_hangs_is_found_and_ended() -> None:
    name = f"test-hang-{os.getpid()}"
    job = start(*SHRINK, "-n", "3", "--name", name, str(SCRIPT), "steps=60", "stop=2:30")
    output = finish(job)
    assert job.returncode == 0, output
    assert "worker 2 hangs and is ended" in output, output
    assert len(weights(output)) == 2, output
    assert len(set(weights(output))) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0", str(SCRIPT)], "at least 1 worker"),
        (["-n", "2"], "no script was given"),
        (["-n", "2", "nowhere.py"], "there is no script 'nowhere.py'"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], message: str) -> None:
    job = start(*words)
    output = finish(job)
    assert job.returncode == 2
    assert message in output
    assert "Traceback" not in output


def test_too_many_workers_for_the_lanes() -> None:
    output = finish(start("-n", "17", str(SCRIPT), "steps=1"))
    assert "16 lanes are too few for 17 workers" in output
