"""The process that runs the user's script: who is a worker, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from meshmend.base.env import Settings
from meshmend.base.processes import Identity
from meshmend.job.shm import AgentSegment, create_as_agent, leave
from meshmend.job.worker import OURS, shown

Worked = tuple[AgentSegment, str]


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Callable[[str], Worked]]:
    """Run a script as a worker, without a courier; its memory, and what it printed."""
    run = f"test-worker-{os.getpid()}"

    def worked(script: str) -> Worked:
        (tmp_path / "script.py").write_text(dedent(script))
        segment = create_as_agent(run, 0)
        segment.agent.owner, segment.agent.wanted, segment.agent.ranks = Identity.of(os.getpid()), 1, 1
        words = [sys.executable, "-P", "-W", "ignore", "-m", "meshmend.job.worker", str(tmp_path / "script.py")]
        told = Settings(run=run, rank=0, folder=tmp_path).environment()
        found = subprocess.run(words, env={**os.environ, **told}, capture_output=True, text=True, check=False)
        return segment, found.stdout + found.stderr

    yield worked
    leave(run)


CHILDREN = """
    import multiprocessing, os, subprocess, sys
    import numpy as np, meshmend as mm
    from meshmend.base.env import Settings

    def train(*_):
        assert Settings.here() is None
        with mm.Job(np.arange(8.0), batch=4, lanes=2) as job:
            state = job.share(np.zeros(1, np.float32))
            for _ in job.steps(2):
                state = state + job.sum(lambda lane: lane.sum()).astype(np.float32)
                job.commit(state)
        os.write(1, b"%d\\n" % state[0])

    if len(sys.argv) > 1:
        train()
    elif __name__ == "__main__":
        assert Settings.here() is not None
        assert os.environ["MESHMEND_RANK"] == "0"
        subprocess.run([sys.executable, __file__, "child"], check=True)
        for way in ("fork", "spawn"):
            child = multiprocessing.get_context(way).Process(target=train)
            child.start()
            child.join()
            assert child.exitcode == 0
        child = os.fork()
        if not child:
            train()
            {}["a child's own"]
        assert os.waitpid(child, 0)[1]
        assert Settings.here() is not None
        sys.exit(3)
"""


def test_children_of_a_worker_are_worlds_of_one_and_leave_its_memory_alone(work: Callable[[str], Worked]) -> None:
    segment, printed = work(CHILDREN)
    assert printed.count("28\n") == 4, (printed, segment.files.read_error())
    assert 'KeyError: "a child\'s own"' in printed
    assert segment.files.read_error() is None
    worker = segment.worker
    assert (worker.step, worker.lanes, worker.progress, worker.ready, worker.finished) == (0, 0, 0, False, False)


SECOND = """
    import numpy as np, meshmend as mm

    from meshmend.job.sequence import SCRIPT

    SCRIPT.begin()  # as the job around it has
    mm.Job(np.arange(8.0), batch=4, lanes=2).share(np.zeros(1))
"""


def test_a_job_within_another_is_one_sentence_and_no_hang(work: Callable[[str], Worked]) -> None:
    error = work(SECOND)[0].files.read_error()
    assert error is not None and error["mistake"] and "one job at a time" in error["error"]


FORK = """
    import os
    import numpy as np, meshmend as mm

    job = mm.Job(np.arange(8.0), batch=4, lanes=2)
    if not os.fork():
        with job:
            for call in (job.share, job.commit, job.sum):
                try:
                    call(np.sum)
                except mm.JobError as error:
                    print(error)
        os._exit(0)
    os.wait()
"""


def test_a_fork_has_no_part_in_the_job_of_its_parent(work: Callable[[str], Worked]) -> None:
    segment, printed = work(FORK)
    assert printed.count("the job belongs to the process that made it") == 3, printed
    assert segment.worker.finished


FIRST = """
    import numpy as np, meshmend as mm

    job = mm.Job(np.arange(8.0), batch=4, lanes=2)
    print(job.rank, job.first, end=" ")
    for ranks in ({0, 1, 3}, {0}, {1, 3}, {3, 0}):
        job.training.session._members = tuple(ranks)
        print(job.first, end=" ")
"""


def test_the_lowest_seat_of_the_last_round_is_first(work: Callable[[str], Worked]) -> None:
    assert work(FIRST)[1].split() == ["0", "False", "True", "True", "False", "True"]


PAUSE = """
    import numpy as np, meshmend as mm

    job = mm.Job(np.arange(8.0), batch=4, lanes=2)
    record = job.training.session._segment.worker
    print(int(record.paused), end=" ")
    with job.pause():
        print(int(record.paused), end=" ")
        with job.pause():
            pass
        print(int(record.paused), end=" ")
    print(int(record.paused), end=" ")
    try:
        with job.pause():
            {}["an evaluation"]
    except KeyError:
        print(int(record.paused))
"""


def test_a_pause_is_marked_as_long_as_it_lasts(work: Callable[[str], Worked]) -> None:
    assert work(PAUSE)[1].split() == ["0", "1", "1", "0", "0"]


CHAIN = """
    import json

    def load(text):
        try:
            json.loads(text)
        except ValueError as error:
            raise RuntimeError("could not load") from error

    try:
        load("{")
    except RuntimeError:
        {}["while that was handled"]
"""


def test_what_led_to_an_exception_is_told_with_the_users_frames_alone(work: Callable[[str], Worked]) -> None:
    error = work(CHAIN)[0].files.read_error()
    assert error is not None and not error["mistake"]
    assert error["error"] == "KeyError: 'while that was handled'"
    told = [line for line in error["trace"].splitlines() if not line.startswith(" ")]
    assert told == [
        "Traceback (most recent call last):",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        "RuntimeError: could not load",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        "KeyError: 'while that was handled'",
    ]
    assert "script.py" in error["trace"] and "runpy" not in error["trace"] and "worker.py" not in error["trace"]


def test_what_meshmend_was_handling_is_not_told() -> None:
    inner = compile(
        "def call(function):\n try: next(iter(()))\n except StopIteration: function()", OURS + "/x.py", "exec"
    )
    names: dict[str, Any] = {}
    exec(inner, names)
    try:
        names["call"](lambda: {}["the user's"])
    except KeyError as error:
        text = shown(error)
    assert "StopIteration" not in text and "x.py" not in text
    assert text.count("Traceback") == 1 and "the user's" in text


MISTAKE = """
    import meshmend as mm
    from meshmend.errors import NotFinite
    raise {error}
"""


@pytest.mark.parametrize(
    ("error", "mistake"), [("mm.JobError('a')", True), ("mm.MeshError('a')", True), ("NotFinite(7, 'a', 'b')", False)]
)
def test_a_sum_that_is_not_finite_is_nobodys_mistake(work: Callable[[str], Worked], error: str, mistake: bool) -> None:
    found = work(MISTAKE.format(error=error))[0].files.read_error()
    assert found is not None
    assert found["mistake"] is mistake and found["error"].startswith(found["trace"])
    assert found["error"].startswith(("a (script.py, line ", "step 7: a; b"))


COURIER = """
    import os
    import mpi4py
    mpi4py.rc.initialize = False  # no world is needed for this, and what MPI keeps in /dev/shm would be left behind
    from meshmend.errors import JobError
    from meshmend.job.courier.courier import carry
    from meshmend.job.protocol import Divergence, Failure
    from meshmend.job.shm import open_as_courier

    class Courier:
        segment = open_as_courier(os.environ["MESHMEND_RUN"], 0)

        def run(self, *, repair):
            raise {error}("a sentence")

        def where(self):
            return ""

    try:
        carry(Courier(), repair=True)
    except Failure:
        pass
"""


@pytest.mark.parametrize(("error", "mistake"), [("JobError", True), ("Divergence", False)])
def test_states_that_differ_without_a_majority_are_nobodys_mistake(
    work: Callable[[str], Worked], error: str, mistake: bool
) -> None:
    segment, printed = work(COURIER.replace("{error}", error))
    found = segment.files.read_error()
    assert found is not None, printed
    assert (found["error"], found["mistake"]) == ("a sentence", mistake)


SIGNALS = """
    import multiprocessing, os, signal, sys, time
    from meshmend.base.processes import Identity
    from meshmend.job import signals
    from meshmend.job.shm import open_as_agent
    from meshmend.job.shm.mailbox import tell
    from meshmend.job.shm.records import Order

    signals.ALONE = 0.3
    me, agent = os.getpid(), open_as_agent(os.environ["MESHMEND_RUN"], 0)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_worker_that_alone_gets_a_signal_dies_of_it(work: Callable[[str], Worked], name: str) -> None:
    lines = (
        f"{SIGNALS}    os.kill(me, signal.{name})\n    print('lives', flush=True)\n    time.sleep(60)\n    print('no')"
    )
    segment, printed = work(lines)
    assert printed == "lives\n" and not segment.worker.finished


def test_a_worker_lives_where_everybody_gets_the_signal_and_the_run_is_halted(work: Callable[[str], Worked]) -> None:
    halted = "    tell(agent, Order.HALT)\n    os.kill(me, signal.SIGTERM)\n    time.sleep(1)\n    print('stops later')"
    segment, printed = work(SIGNALS + halted)
    assert printed == "stops later\n" and segment.worker.finished


def test_a_worker_without_a_launcher_writes_its_checkpoint_and_ends(work: Callable[[str], Worked]) -> None:
    alone = """
    signals.HALT_ALONE, agent.agent.owner = 0.1, Identity()
    os.kill(me, signal.SIGTERM)
    time.sleep(60)
    print("no")
"""
    segment, printed = work(SIGNALS + alone)
    assert printed == "" and segment.worker.orphaned


def test_a_closed_terminal_is_nothing_to_a_worker(work: Callable[[str], Worked]) -> None:
    segment, printed = work(SIGNALS + "    os.kill(me, signal.SIGHUP)\n    time.sleep(0.5)\n    print('lives')")
    assert printed == "lives\n" and segment.worker.finished


def test_a_script_has_its_own_handlers_and_its_children_the_usual_ones(work: Callable[[str], Worked]) -> None:
    own = """
    def child():
        os.write(1, f"{signal.getsignal(signal.SIGTERM) is signal.SIG_DFL}\\n".encode())
        time.sleep(60)
    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    while not open(f"/proc/{forked.pid}/cmdline").read():
        time.sleep(0.01)
    forked.terminate()
    forked.join(30)
    print(forked.exitcode)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the script's own end"))
    os.kill(me, signal.SIGTERM)
    time.sleep(60)
"""
    _, printed = work(SIGNALS + own)
    assert printed.splitlines()[-2:] == ["-15", "the script's own end"], printed


def test_printing_to_a_full_disk_ends_no_worker(work: Callable[[str], Worked]) -> None:
    segment, _ = work("""
    import os, sys
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    os.dup2(full, 2)
    print("nobody reads this", flush=True)
    sys.stderr.write("nor this" * 10000)
    sys.stderr.flush()
    """)
    assert segment.worker.finished


def test_modules_are_looked_for_beside_the_script_and_not_where_the_run_was_started(
    work: Callable[[str], Worked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's xxhash.py in a folder that everybody may write to is not ours to run."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "xxhash.py").write_text("print('theirs')")
    (tmp_path / "beside.py").write_text("print('ours')")
    monkeypatch.chdir(shared)
    segment, printed = work("import beside, xxhash, sys; print(sys.path[0])")
    assert printed == f"ours\n{tmp_path.resolve()}\n" and segment.worker.finished
