"""Jobs inside a testbed: Open MPI's ranks on chips, and whole training runs that lose a chip."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from meshmend import Mesh, report, testbed
from meshmend.mesh.grid import Chip
from meshmend.run.console import sentence, world_reason
from meshmend.run.supervisor.messages import HostBack, MpirunLost
from meshmend.telemetry import Component, Died, Formed, read
from tests.jobs.conftest import undisturbed as undisturbed
from tests.jobs.jobs import SCRIPT
from tests.testbed.beds import ALLREDUCE, left, need_testbed

Undisturbed = Callable[..., str]
DEADLINE = 240.0
"""Seconds: a lost host is noticed after twenty."""
GONE = r"(lost host|cannot reach) {0}"
"""A chip is missed by the launcher or by mpirun, whichever looks first: values of `HostLost` and `Split`."""
COMMAND = [sys.executable, "-m", "meshmend", "testbed"]
RUN = [sys.executable, "-m", "meshmend", "run"]


@pytest.fixture(autouse=True)
def _needed() -> None:
    need_testbed()


def meshmend_testbed(folder: Path, *words: str) -> tuple[int, str]:
    """The command's status and all that it and its job print; nothing may be left of it."""
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = process.communicate(timeout=DEADLINE)[0]
    assert left(process.pid) == []
    return process.returncode, output


def test_ranks_are_on_chips_row_by_row(tmp_path: Path) -> None:
    status, output = meshmend_testbed(
        tmp_path, "2x3", "-chip@0,1", "--rate", "100mbit", "--", sys.executable, ALLREDUCE, "100000"
    )
    assert status == 0, output
    places = ["0 0,0 chip-0-0", "1 0,2 chip-0-2", "2 1,0 chip-1-0", "3 1,1 chip-1-1", "4 1,2 chip-1-2"]
    assert [line for line in output.splitlines() if re.match(r"\d \d,", line)] == places
    assert "2x3 -chip@0,1: 5 chips, 4 links of 100 Mbit/s" in output and "mpirun --allow-run-as-root" in output


def test_commands_that_end_at_once_leave_nobody_waiting() -> None:
    """Open MPI's daemons, where they detach, miss the end of one of them in every second run."""
    with testbed.Testbed(Mesh.parse("4x4"), "100mbit") as bed:
        for _ in range(8):
            done = subprocess.run(bed.mpirun("hostname"), capture_output=True, text=True, timeout=DEADLINE)
            assert (done.returncode, sorted(done.stdout.split())) == (0, sorted(bed.hosts)), done.stderr


def test_the_status_is_the_commands(tmp_path: Path) -> None:
    status, output = meshmend_testbed(tmp_path, "1x2", "--", "sh", "-c", 'test "$MESHMEND_CHIP" = 0,0 || exit 7')
    assert status == 7, output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["2x2", "--rate", "50", "--", "true"], "cannot read '50' as a rate"),
        (["2x2", "--fail", "2x2@1,1", "--", "true"], "outside the 2x2 mesh"),
        (["2x2", "--fail", "2x2@0,0", "--", "true"], "all 4 chips of 2x2 are dead"),
        (["2x2", "--fail", "chip@0,0", "--after", "soon", "--", "true"], "cannot read 'soon' as a time"),
        (["2x2"], "no command was given"),
        (["1x3", "-chip@0,1", "--", "true"], "disconnected"),
    ],
)
def test_mistakes_are_one_message(tmp_path: Path, words: list[str], says: str) -> None:
    status, output = meshmend_testbed(tmp_path, *words)
    assert status == 2 and output.startswith("meshmend: ") and says in output and "Traceback" not in output


def without_root(*words: str, **environment: str) -> list[str]:
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env"]
    return [*nobody, *(f"{name}={value}" for name, value in environment.items()), *words]


def test_without_root_it_is_a_user_namespace_or_one_sentence() -> None:
    python = "/usr/bin/python3"
    path = os.pathsep.join([str(Path(testbed.__file__).parents[2]), *(p for p in sys.path if "site-packages" in p)])
    found = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
    found["PATH"] = f"{Path(sys.executable).parent}:/usr/sbin:/sbin:/usr/bin:/bin"
    if not shutil.which("setpriv") or subprocess.run(
        without_root(python, "-c", "import cyclopts, numpy, meshmend.cli", **found), capture_output=True
    ).returncode:  # fmt: skip
        pytest.skip("no Python here that somebody else than root may run with our libraries")
    line = without_root(python, "-m", "meshmend", "testbed", "1x2", "--", "sh", "-c", "echo on $MESHMEND_CHIP", **found)
    done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE, cwd="/tmp")
    if done.returncode == 2:
        assert re.fullmatch(r"meshmend: a testbed needs root .*\n", done.stderr)
    else:
        assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", "on 0,0", "on 0,1"]), done.stderr


def test_sigterm_ends_the_job_and_the_testbed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "1x2", "--", "sh", "-c", "echo begun; sleep 1000"], cwd=tmp_path, text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)  # less than the job would take
    assert process.returncode == 143
    assert left(process.pid) == []


@pytest.mark.jobs
def test_a_lost_link_does_not_end_an_mpi_job(tmp_path: Path) -> None:
    status, output = meshmend_testbed(
        tmp_path, "2x2", "--rate", "20mbit", "--fail", "link@0,0:0,1", "--after", "3s", "--mend", "2s",
        "--", sys.executable, ALLREDUCE, "4000000", "5",
    )  # fmt: skip
    assert status == 0 and "cut " in output and "mended " in output and "seconds " in output, output


@pytest.mark.jobs
def test_a_lost_chip_ends_a_plain_mpi_job_soon(tmp_path: Path) -> None:
    """In seconds: left to the kernel, it would take a quarter of an hour, and this test would hang."""
    status, output = meshmend_testbed(
        tmp_path, "2x2", "--fail", "chip@0,0", "--after", "3s", "--", sys.executable, "-c",
        "from mpi4py import MPI; import time; time.sleep(1000)",
    )  # fmt: skip
    assert status == 1, output


class Training:
    """A training run in a testbed, driven by what it prints."""

    def __init__(self, bed: testbed.Testbed, folder: Path, *words: str, at: Chip | None = None) -> None:
        hosts = ",".join(f"{name}:1" for name in bed.hosts)
        new = ["--hosts", hosts, "--launch-agent", bed.agent, "--name", "bed"]
        line = [*RUN, *([] if "--resume" in words else new), *words]
        self.output = ""
        self.process = subprocess.Popen(
            bed.line(at or bed.chips[-1], *line),
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._late = threading.Timer(DEADLINE, self.process.kill)
        self._late.start()

    def until(self, text: str) -> None:
        """Read until this is there."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if re.search(text, line):
                return
        pytest.fail(f"{text!r} never came:\n{self.output}")

    def finish(self, status: int = 0) -> list[str]:
        """The weights at its end."""
        self.output += self.process.communicate()[0]
        self._late.cancel()
        assert self.process.returncode == status, self.output
        return re.findall(r"weights (\w+) after", self.output)


def mpiruns_lost(folder: Path) -> int:
    """How many worlds were formed because mpirun was lost."""
    why = world_reason(MpirunLost())
    return sum(isinstance(event, Formed) and event.why == why for event in read(folder / "runs" / "bed"))


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("mesh", "hole", "words", "says", "survivors"),
    [
        ("2x2", "chip@0,0", [], GONE.format("chip-0-0"), 3),
        ("2x2", "link@0,0:0,1", ["--mesh", "2x2"], re.escape("sums go over 2x2 -link@0,0:0,1 by"), 4),
        ("2x3", "link@0,0:0,1", ["--mesh", "2x3"], re.escape("sums go over 2x3 -link@0,0:0,1 by"), 6),
        ("2x3", "chip@0,1", ["--mesh", "2x3"], re.escape("sums go over 2x3 -chip@0,1 by"), 5),
    ],
)
def test_training_goes_on_round_what_is_lost(
    tmp_path: Path, mesh: str, hole: str, words: list[str], says: str, survivors: int, undisturbed: Undisturbed
) -> None:
    """Chips die with all their processes; a link dies alone, but the chips at its ends see its carrier go."""
    with testbed.Testbed(Mesh.parse(mesh), "50mbit") as bed:
        run = Training(bed, tmp_path, *words, str(SCRIPT), "steps=150", "pause=0.1")
        run.until(r"step 5\b")
        bed.cut(hole)
        weights = run.finish()
    assert re.search(says, run.output)
    assert weights == [undisturbed("steps=150")] * survivors, run.output
    events = read(tmp_path / "runs" / "bed")
    assert report.check(events).findings == []
    lost = [event.host for event in events if isinstance(event, Died) and event.what is Component.HOST]
    assert len(lost) == len(Mesh.parse(mesh).live) - survivors


@pytest.mark.jobs
def test_a_chip_is_lost_while_its_world_comes_up(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with testbed.Testbed(Mesh.parse("2x2"), "50mbit") as bed:
        run = Training(bed, tmp_path, str(SCRIPT), "steps=30", "pause=0.1")
        run.until("world 1")
        bed.cut("chip@0,0")
        weights = run.finish()
    assert weights == [undisturbed("steps=30")] * 3, run.output
    assert mpiruns_lost(tmp_path) < 8, run.output
    assert report.check(read(tmp_path / "runs" / "bed")).findings == []


@pytest.mark.jobs
def test_a_training_run_takes_a_mended_chip_back(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with testbed.Testbed(Mesh.parse("2x2"), "50mbit") as bed:
        run = Training(bed, tmp_path, str(SCRIPT), "steps=400", "pause=0.1")
        run.until(r"step 5\b")
        bed.cut("chip@0,1")
        run.until(GONE.format("chip-0-1"))
        bed.mend("chip@0,1")
        weights = run.finish()
    assert sentence(HostBack("chip-0-1")) in run.output and mpiruns_lost(tmp_path) <= 1, run.output
    assert weights == [undisturbed("steps=400")] * 4, run.output
    assert report.check(read(tmp_path / "runs" / "bed")).findings == []


@pytest.mark.jobs
def test_links_are_the_limit_and_not_the_machine() -> None:
    """Twice the rate, half the time; of three tries the best, as other load can only make it slower."""
    seconds = []
    for rate in ("10mbit", "20mbit"):
        with testbed.Testbed(Mesh.parse("2x3"), rate) as bed:
            line = bed.mpirun(sys.executable, ALLREDUCE, "2000000", "2")
            tries = [subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE) for _ in range(3)]
            assert [done.returncode for done in tries] == [0, 0, 0], tries
        seconds.append(min(float(done.stdout.split("seconds ")[1].split()[0]) for done in tries))
    assert 1.7 < seconds[0] / seconds[1] < 2.3, seconds
