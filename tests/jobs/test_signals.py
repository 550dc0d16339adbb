"""Signals and pipes: what reaches every process of a run, or its output alone, never costs the state."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshmend.base.status import DONE, HALTED
from meshmend.job.state.safetensors import latest
from meshmend.run.console import announcement
from meshmend.run.news import DiskFreed, DiskFull
from tests.jobs.facts import deaths
from tests.jobs.jobs import DEADLINE, SCRIPT, Job, processes, wait_for
from tests.jobs.test_neighbours import ports


def log(job: Job) -> str:
    """Everything that the launcher has said."""
    path = job.path / "output" / "launcher.log"
    return path.read_text() if path.exists() else ""


def test_ctrl_c_whose_reader_dies_of_it_too_still_writes_the_checkpoint(job: Job) -> None:
    """As in `meshmend run … 2>&1 | tee log`."""
    job.start("-n", "2", script=(SCRIPT, "steps=1000000", "pause=0.01")).until("step 5")
    assert job.process is not None and job.process.stdout is not None
    job.process.stdout.close()
    before = log(job).count("step ")
    wait_for(lambda: log(job).count("step ") > before + 5)  # the run goes on meanwhile
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(DEADLINE) == HALTED
    assert latest(job.path / "checkpoints") is not None and f"--resume {job.name}" in log(job)
    job.assert_clean()


def test_output_that_nobody_reads_never_stops_training(job: Job) -> None:
    """As in `meshmend run … | less` where nobody scrolls: more is printed than a pipe holds."""
    script = job.folder / "chatty.py"
    script.write_text(f"print(*range(30000), sep='\\n')\n{SCRIPT.read_text()}")
    job.start("-n", "2", script=(script,))
    wait_for(lambda: "done: 20 steps" in log(job))
    job.finish()
    assert job.status == DONE and len(set(log(job).split("weights ")[1:])) > 0
    job.assert_clean()


def test_sigterm_to_every_process_still_writes_the_checkpoint(job: Job) -> None:
    """As Slurm does when it requeues; and meanwhile, nothing of a run on one host listens on a network."""
    job.start("-n", "2", script=(SCRIPT, "steps=1000000", "pause=0.01")).until("step 5")
    assert job.process is not None
    everybody = processes(job.name)
    assert len(everybody) == 6  # launcher, mpirun, two workers and their couriers
    wait_for(lambda: [where for process in everybody for where in reachable(process)] == [])
    for process in sorted(everybody, key=lambda process: process == job.process.pid):  # the launcher is the last
        os.kill(process, signal.SIGTERM)
    job.finish()
    assert job.status == HALTED and deaths(job) == [], job.output
    assert latest(job.path / "checkpoints") is not None
    job.assert_clean()


def reachable(process: int) -> list[str]:
    """The sockets of a process that accept connections from the network, in the words of `ss`."""
    if os.readlink(f"/proc/{process}/ns/net") != os.readlink("/proc/self/ns/net") or not ports(process):
        return []  # it is in a network of its own, or listens nowhere
    if not shutil.which("ss"):
        pytest.skip("needs ss (iproute2), to tell which device a socket is bound to")
    lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    ours = [line.split()[3] for line in lines if f"pid={process}," in line]
    return [where for where in ours if "%lo:" not in where and not where.startswith(("127.", "[::1]"))]


def test_without_a_network_of_its_own_a_run_listens_on_loopback_alone(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nobody may make a network namespace; here it has none since Open MPI's networks were chosen."""
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "lo")
    job.start("-n", "2", script=(SCRIPT, "gate=5")).until("step 5")
    everybody = processes(job.name)
    ours = os.readlink("/proc/self/ns/net")
    assert {os.readlink(f"/proc/{process}/ns/net") for process in everybody} == {ours}
    wait_for(lambda: sum(len(ports(process)) for process in everybody) >= 3)  # mpirun's and its couriers'
    wait_for(lambda: [where for process in everybody for where in reachable(process)] == [])
    job.open_gate()
    job.finish()
    assert job.status == DONE, job.output
    job.assert_clean()


def test_a_run_survives_its_terminal(job: Job) -> None:
    """The terminal is closed: SIGHUP, and whatever is written there fails."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "meshmend", "run", "-n", "2", "--name", job.name, str(SCRIPT), "gate=5"]
    job.process = subprocess.Popen(
        ["setsid", "-c", *command], cwd=job.folder, stdin=theirs, stdout=theirs, stderr=theirs
    )  # type: ignore[assignment]
    os.close(theirs)
    wait_for(lambda: "step 5" in log(job))
    os.close(ours)
    wait_for(lambda: "SIGHUP" in log(job))
    for process in processes(job.name):
        os.kill(process, signal.SIGHUP)
    job.open_gate()
    assert job.process is not None and job.process.wait(DEADLINE) == DONE
    assert "done: 20 steps" in log(job) and deaths(job) == []
    job.assert_clean()


CROWD = """
import os, signal, threading, time
def fill(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        os.close(file)
def empty(path):
    while not os.path.exists("room"):
        time.sleep(0.01)
    os.unlink(path)
"""


def small(mount: Path, room: str, *command: str) -> list[str]:
    """A command with a small file system of its own there."""
    if os.geteuid():
        pytest.skip("needs root, for a small file system of its own")
    inside = f'mount -t tmpfs -o size={room} tmpfs {mount} && exec "$@"'
    return ["unshare", "-m", "sh", "-c", inside, "sh", *command]


def test_a_worker_that_cannot_be_started_is_started_later(job: Job) -> None:
    """Somebody fills /dev/shm, and a worker dies: the others go on, and it comes back when there is room."""
    script = job.folder / "made.py"
    script.write_text(
        CROWD
        + """
import numpy as np
import meshmend as mm
with mm.Job(np.ones((64, 1), np.float32), batch=8, lanes=4) as job:
    state = job.share(np.zeros(1, np.float32))
    for step in job.steps(10**6):
        total, end = job.sum(lambda lane: (lane.sum(0), np.float32(os.path.exists("room"))))
        job.commit(state)
        if step == 5 and job.rank == 0:
            fill("/dev/shm/theirs")
            threading.Thread(target=empty, args=["/dev/shm/theirs"], daemon=True).start()
        if step == 9 and job.rank == 1 and not os.path.exists("once"):
            open("once", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.005)
        if end and len(job.training.session.account.digests) == 2:  # the same on both
            break
"""
    )
    job.on = lambda *words: small(Path("/dev/shm"), "64m", *words)
    job.start("-n", "2", script=(script,)).until("cannot start worker 1")
    before = log(job)
    (job.folder / "room").touch()
    job.finish()
    assert job.status == DONE and "worker 1 joins" in job.output and before.count("cannot start") == 1, job.output


@pytest.mark.parametrize("halted", [False, True])
def test_a_full_disk_is_waited_for(job: Job, halted: bool) -> None:
    """Steps that cannot be written down wait; also the last checkpoint of a run that is halted meanwhile does."""
    (job.folder / "runs").mkdir()
    script = job.folder / "made.py"
    script.write_text(
        CROWD
        + """
import numpy as np
import meshmend as mm
with mm.Job(np.ones((64, 1), np.float32), batch=8, lanes=4) as job:
    state = job.share(np.zeros(4096, np.float32))
    for step in job.steps(10**6):
        total, end = job.sum(lambda lane: (lane.sum(0), np.float32(os.path.exists("end"))))
        job.commit(state, loss=1.0)
        if step == 5 and job.rank == 0:
            fill("runs/theirs")
            threading.Thread(target=empty, args=["runs/theirs"], daemon=True).start()
        if end:
            break
        time.sleep(0.001)
"""
    )
    job.on = lambda *words: small(job.folder / "runs", "4m", *words)
    job.start("-n", "2", script=(script,)).until(announcement(DiskFull(job.path)))
    assert job.process is not None
    if halted:
        job.process.send_signal(signal.SIGTERM)
        job.until("SIGTERM")
    (job.folder / "room").touch()
    if not halted:
        job.until(announcement(DiskFreed()))
        (job.folder / "end").touch()
    job.finish()
    assert job.status == (HALTED if halted else DONE) and "Traceback" not in job.output, job.output
    assert "killed" not in job.output
