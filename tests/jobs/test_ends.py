"""How a run ends: its status, what it says, and that nothing is left, also of what workers have started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.job.protocol.agreement import TOGETHER
from meshmend.job.shm import ranks_of
from meshmend.run.console import halt_reason, sentence
from meshmend.run.supervisor.messages import AllStill, BadStart, GivenUp, WorkerEnded
from meshmend.run.supervisor.observations import Cause
from meshmend.run.supervisor.state import RESTARTS
from meshmend.telemetry import How, Why, read, read_description
from tests.jobs.facts import deaths, worlds
from tests.jobs.jobs import DEADLINE, Job, processes, wait_for

HEAD = """
import os, signal, subprocess, sys, time
import numpy as np
import meshmend as mm
rank = int(os.environ["MESHMEND_RANK"])
x = np.ones((64, 1), np.float32)
def train(steps, function=lambda lane: lane.sum(0), size=1):
    with mm.Job(x, batch=8, lanes=4) as job:
        state = job.share(np.zeros(size << 18, np.float32))
        for step in job.steps(steps):
            total = job.sum(function)
            if step == 5:
                print("going", flush=True)
            job.commit(state)
"""


def script(job: Job, text: str) -> list[Path]:
    path = job.folder / "made.py"
    path.write_text(HEAD + text)
    return [path]


def test_what_a_script_does_after_its_job_counts(job: Job) -> None:
    job.run("-n", "2", script=script(job, "train(3)\nif rank == 0: open('no such folder/model', 'w')"))
    assert job.status == 1 and "FileNotFoundError" in job.output
    job.assert_clean()


@pytest.mark.parametrize("warm", [0, 1])
def test_a_worker_has_one_thread_unless_the_user_wants_more(
    job: Job, monkeypatch: pytest.MonkeyPatch, warm: int
) -> None:
    text = "train(3)\nprint('threads', os.environ['OMP_NUM_THREADS'])"
    for given, threads in ((None, "1"), ("3", "3")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if given is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
            job.name += "-more"
        job.run("-n", "1", "--warm", str(warm), script=script(job, text))
        assert job.status == 0 and f"threads {threads}" in job.output, job.output
        job.assert_clean()


def test_one_killed_after_the_last_step_takes_nothing_away(job: Job) -> None:
    job.run("-n", "2", script=script(job, "train(3)\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)"))
    assert job.status == 0, job.output
    job.assert_clean()


def test_a_signal_without_a_name_is_a_death_like_others(job: Job) -> None:
    lane = "lambda lane: os.kill(os.getpid(), 35) if rank and mark() else lane.sum(0)"
    text = f"def mark():\n    made = os.path.exists('once'); open('once', 'w'); return not made\ntrain(30, {lane})"
    job.run("-n", "2", "--on-failure", "shrink", script=script(job, text))
    assert job.status == 0 and deaths(job) == [(1, How.SIGNAL, 35)], job.output
    job.assert_clean()


def test_a_worker_that_always_fails_is_not_replaced_for_ever(job: Job) -> None:
    """Nor is a run on the others done: it stops, with a checkpoint of what they did."""
    lane = "lambda lane: lane.sum(0) if rank == 0 else 1 / 0"
    job.run("-n", "2", script=script(job, f"train(10**6, {lane})"))
    assert sentence(GivenUp(1, RESTARTS)) in job.output and "--resume" in job.output, job.output
    assert job.status == 1 and job.output.count("ZeroDivisionError") == 1, job.output
    job.assert_clean()


@pytest.mark.parametrize("policy", ["replace", pytest.param("shrink", marks=pytest.mark.jobs)])
def test_workers_that_differ_from_the_start_end_the_run(job: Job, policy: str) -> None:
    """Training on one of two workers is not what was asked for."""
    steps = {"replace": 10**6, "shrink": 3}[policy]  # 3 are done before the launcher can halt them
    job.run("-n", "2", "--on-failure", policy, script=script(job, f"train({steps}, size=1 + rank)"))
    assert job.status == 1 and halt_reason(BadStart((1,), 2)) in job.output, job.output
    assert "done:" not in job.output and "Traceback" not in job.output, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_one_killed_before_the_run_begins_is_started_again(job: Job) -> None:
    text = """
if rank == 1 and not os.path.exists("killed"):
    open("killed", "w")
    os.kill(os.getpid(), signal.SIGKILL)
train(3)
"""
    job.run("-n", "2", script=script(job, text))
    assert job.status == 0 and worlds(job) == [(1, Why.BEGIN)], job.output
    job.assert_clean()


def test_one_that_is_stopped_while_it_loads_is_started_again(job: Job) -> None:
    """It is neither dead nor owes anything yet, and all others would wait for it for ever."""
    text = """
if rank == 1 and not os.path.exists("stopped"):
    open("stopped", "w")
    os.kill(os.getpid(), signal.SIGSTOP)
train(3)
"""
    job.run("-n", "2", script=script(job, text))
    assert job.status == 0 and worlds(job) == [(1, Why.BEGIN)], job.output
    job.assert_clean()


def test_what_a_worker_has_started_ends_with_it(job: Job) -> None:
    text = f"subprocess.Popen(['sleep', '1000'], env={{**os.environ, 'OF': {job.name!r}}})\ntrain(10**6)"
    job.start("-n", "2", script=script(job, text)).until("going")
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.process.send_signal(signal.SIGINT)
    job.finish()
    wait_for(lambda: processes(f"sleep.*{job.name}") == [])
    job.assert_clean()


def test_ctrl_c_before_the_job_is_open_ends_at_once(job: Job) -> None:
    job.start("-n", "2", script=script(job, "print('loading', flush=True)\ntime.sleep(1000)")).until("loading")
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.finish()
    assert job.status == 1 and "--resume" not in job.output, job.output
    assert ranks_of(job.name) == [] and processes(job.name) == []


def test_without_a_checkpoint_the_status_does_not_speak_of_one(job: Job) -> None:
    (job.path / "checkpoints").parent.mkdir(parents=True)
    job.start("-n", "2", script=script(job, "train(10**6, lambda lane: (time.sleep(0.01), lane.sum(0))[1])"))
    job.until("going")
    assert job.process is not None
    shutil.rmtree(job.path / "checkpoints", ignore_errors=True)
    (job.path / "checkpoints").touch()  # where the folder should be
    job.process.send_signal(signal.SIGTERM)
    job.finish()
    assert job.status == 1 and str(job.path / "checkpoints") in job.output, job.output
    assert "--resume" not in job.output
    job.assert_clean()


def test_a_job_that_is_left_without_its_end_says_how_to_end_it(job: Job) -> None:
    job.run("-n", "2", script=script(job, "train(10**6, lambda lane: sys.exit(0))"))
    early = [sentence(WorkerEnded(rank, 0, Cause.NONE, early=True)) for rank in (0, 1)]
    assert job.status == 1 and any(text in job.output for text in early), job.output
    assert all((how, value) == (How.EXIT, 0) for _, how, value in deaths(job))
    job.assert_clean()


@pytest.mark.parametrize("workers", [pytest.param("2", marks=pytest.mark.jobs), "3"])
def test_states_that_differ_are_told_by_their_first_leaf(job: Job, workers: str) -> None:
    """Of two workers nobody knows which is right; of three, one is outvoted."""
    text = """
with mm.Job(x, batch=8, lanes=4) as job:
    state = job.share({"a": np.zeros(3), "b": np.zeros(3), "c": np.zeros(3)})
    for step in job.steps(8):
        job.sum(lambda lane: lane.sum(0))
        if rank == 1 and step == 3:
            state["b"] = state["b"] + 1
            state["c"] = state["c"] + 1
        job.commit(state)
"""
    job.run("-n", workers, "--on-failure", "shrink", script=script(job, text))
    assert job.status == (1 if workers == "2" else 0) and "'b', 'c'" in job.output, job.output
    assert "'a'" not in job.output


@pytest.mark.jobs
def test_workers_that_leave_the_loop_alone_are_told(job: Job) -> None:
    text = """
with mm.Job(x, batch=8, lanes=4) as job:
    state = job.share(np.zeros(3))
    for step in job.steps(8):
        job.sum(lambda lane: lane.sum(0))
        job.commit(state)
        if rank == 1 and step == 3:
            break
"""
    job.run("-n", "2", script=script(job, text))
    assert job.status == 1 and TOGETHER in job.output, job.output
    job.assert_clean()


@pytest.mark.parametrize(("room", "size", "says"), [("100k", 1, "rank"), ("40m", 30, "to a replacement")])
def test_too_little_shared_memory_is_one_sentence(job: Job, room: str, size: int, says: str) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root, for a small /dev/shm of its own")
    command = [sys.executable, "-m", "meshmend", "run", "-n", "2", "--name", job.name]
    command += map(str, script(job, f"train(3, size={size})"))
    inside = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={room} tmpfs /dev/shm && exec "$@"', "sh"]
    ran = subprocess.run([*inside, *command], cwd=job.folder, capture_output=True, text=True, timeout=DEADLINE)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 2 and "--shm-size" in said and says in said and "Traceback" not in said, said


@pytest.mark.jobs
def test_a_pause_of_all_workers_is_no_hang(job: Job) -> None:
    """They pause until the launcher has noticed; in the same step: the first one computes its first lane twice."""
    text = """
count = [0]
def lane(samples):
    count[0] += 1
    while count[0] == 41 + (rank == 0) and not os.path.exists("noticed"):
        time.sleep(0.01)
    return samples.sum(0)
train(100, lane)
"""
    job.start("-n", "2", script=script(job, text)).until(sentence(AllStill()))
    (job.folder / "noticed").touch()
    job.finish()
    assert job.status == 0 and deaths(job) == [], job.output
    job.assert_clean()


def test_a_folder_that_was_removed_during_a_run_does_not_prevent_resuming(job: Job) -> None:
    """Nor is a worker that dies then without a place for its output."""
    job.start("-n", "2", script=script(job, "train(10**6, lambda lane: (time.sleep(0.01), lane.sum(0))[1])"))
    job.until("going")
    assert job.process is not None
    [worker] = re.findall(r"workers 0 and 1 are processes \d+ (\d+)", job.output)
    shutil.rmtree(job.path)
    os.kill(int(worker), signal.SIGKILL)
    job.until("worker 1 joins").process.send_signal(signal.SIGTERM)
    job.finish()
    assert job.status == 75 and f"--resume {job.name}" in job.output, job.output
    assert "cannot start" not in job.output
    assert read_description(job.path)["workers"] == 2
    shutil.rmtree(job.path / "events")  # that only the worker that joined has made again
    for began in (0, 1):
        job.output = ""
        job.start("--resume", job.name, script=[], name=False).until("step ").process.send_signal(signal.SIGTERM)
        job.finish()
        assert job.status == 75 and "from step-" in job.output, job.output
        assert max(event.epoch.attempt for event in read(job.path)) == began
        (job.path / "events" / "launcher.jsonl").unlink()


def test_a_working_folder_that_was_removed_during_a_run_does_not_prevent_resuming(job: Job) -> None:
    """A worker is replaced, the run is halted, and resumed from the folder that was made again with the run's."""
    [path] = script(job, "train(10**6, lambda lane: (time.sleep(0.01), lane.sum(0))[1])")
    kept, job.folder = job.folder, job.folder / "gone"
    job.folder.mkdir()
    job.start("-n", "2", script=[path]).until("going")
    assert job.process is not None
    [worker] = re.findall(r"workers 0 and 1 are processes \d+ (\d+)", job.output)
    shutil.rmtree(job.folder)
    os.kill(int(worker), signal.SIGKILL)
    job.until("worker 1 joins").process.send_signal(signal.SIGTERM)
    job.finish()
    assert job.status == 75 and f"--resume {job.name}" in job.output and "Traceback" not in job.output, job.output
    assert "cannot start" not in job.output and [*(job.path / "checkpoints").iterdir()]
    job.output = ""
    job.start("--resume", job.name, script=[], name=False).until("step ").process.send_signal(signal.SIGTERM)
    job.finish()
    assert job.status == 75 and "from step-" in job.output, job.output
    assert kept in job.path.parents


def test_a_run_in_a_folder_that_was_removed_is_one_sentence(tmp_path: Path) -> None:
    line = f'mkdir gone && cd gone && rmdir ../gone && exec "{sys.executable}" -P -m meshmend run "$@"'
    for words in (["-n", "2", "/train.py"], ["-m", "train"], ["--resume", "mine"], ["--attach", "mine"]):
        ran = subprocess.run(["sh", "-c", line, "sh", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 2 and "the folder that you are in was removed" in ran.stderr, ran
        assert ran.stderr.count("\n") == 1
