"""A courier whose mpirun has died begins nothing, however early that was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from meshmend.job.courier.parent import Parent
from meshmend.job.shm import create_as_agent, leave, open_to_read

RUN = f"test-parent-{os.getpid()}"
MPIRUN = """
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
os.kill(os.getpid(), signal.SIGKILL)
"""
LATE = """
import sys
sys.stdin.read()  # until the parent is dead
from meshmend.job.courier.parent import Parent
with open(sys.argv[1], "w") as answer:
    answer.write(str(Parent().gone))
"""


def test_a_parent_that_lives_is_seen() -> None:
    assert not Parent().gone


def test_one_that_was_dead_before_anybody_looked_is_found_out(tmp_path: object) -> None:
    answer = f"{tmp_path}/answer"
    os.mkfifo(answer)
    subprocess.run([sys.executable, "-c", MPIRUN, LATE, answer], timeout=60)
    with open(answer) as said:
        assert said.read() == "True"


@pytest.fixture
def memory() -> Iterator[None]:
    create_as_agent(RUN, 0)
    yield
    leave(RUN)


@pytest.mark.usefixtures("memory")
def test_a_courier_that_mpi_takes_for_the_only_one_leaves_the_first_worker_alone(tmp_path: object) -> None:
    words = [sys.executable, "-P", "-m", "meshmend.job.courier", RUN, str(tmp_path), "0,1", "1", "repair", "lo"]
    # It kills itself, and would leave its segment where that is.
    memory = {**os.environ, "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    ended = subprocess.run(words, timeout=100, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=memory)
    assert ended.returncode == -signal.SIGKILL and not ended.stdout
    assert open_to_read(RUN, 0).courier.standby == 0
