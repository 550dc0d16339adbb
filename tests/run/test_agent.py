"""An agent and the workers of its host: whom it judges, whom it kills, and what it says about them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshmend.base import processes
from meshmend.base.clocks import REPAIR
from meshmend.base.processes import EXITING, Doing, Identity, is_alive
from meshmend.base.proofs import new_secret
from meshmend.base.status import DONE, HALTED, KILLED
from meshmend.job import worker as worker_module
from meshmend.job.shm import create_as_agent, leave, open_as_courier, open_as_worker, ranks_of, world_folder
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.mailbox import CourierSide, tell
from meshmend.job.shm.records import CourierPhase, Order
from meshmend.job.shm.segment import WorkerSegment
from meshmend.run.agent import agent as agent_module
from meshmend.run.agent import local_worker, messages
from meshmend.run.agent.agent import Agent
from meshmend.run.agent.local_worker import LocalWorker
from meshmend.run.agent.messages import VERSION, Hello, Notice, Report, pack, unpack, unpack_command
from meshmend.run.hosts.remote import Remote
from meshmend.run.supervisor.observations import MOVES, PAUSES, STOPPED, Cause, CourierState, RankSeen, WorkerError
from meshmend.telemetry import Epoch
from tests.processes import DEADLINE, wait_for

RUN = f"test-agent-{os.getpid()}"


@pytest.fixture
def worker() -> Iterator[LocalWorker]:
    yield LocalWorker(0, create_as_agent(RUN, 0))
    leave(RUN)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as child:
        yield child
        child.kill()


def others_with_its_number(one: Identity) -> list[Identity]:
    """Processes that had this number before, before the last boot, or have it in another container."""
    return [
        replace(one, born=one.born - 1), replace(one, boot=one.boot ^ 1), replace(one, space=one.space + 1),
    ]  # fmt: skip


def test_nobody_is_killed_for_having_the_number_of_another(
    worker: LocalWorker, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a session leader, whose number is that of a dead worker's group."""
    monkeypatch.setattr(local_worker, "name", lambda _: local_worker.DAEMON)
    courier = open_as_courier(RUN, 0).courier
    for wrong in others_with_its_number(Identity.of(process.pid)):
        worker.segment.agent.worker = courier.process = courier.daemon = wrong
        worker.segment.agent.world = courier.world = courier.world + 1
        worker.status = None
        worker.poll_exit()
        assert worker.status == KILLED
        worker.end_courier()
        worker.kill(Cause.HANG)
        worker.end()
        assert worker.cause is Cause.NONE and process.poll() is None
    worker.segment.agent.worker = Identity.of(process.pid)
    worker.kill(Cause.HANG)
    assert process.wait(60) == -signal.SIGKILL and worker.cause is Cause.HANG


def test_an_agent_leaves_workers_of_other_containers_and_innocents_alone(
    worker: LocalWorker, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    before, boot, container = others_with_its_number(Identity.of(process.pid))
    agent = Agent(RUN, tmp_path)
    for owner, theirs, adopts in [(before, before, True), (boot, before, True), (container, container, False)]:
        agent.workers.clear()
        worker.segment.agent.owner, worker.segment.agent.worker = owner, theirs
        agent.act(messages.Adopt(ranks=[0]))
        assert list(agent.workers) == [0] * adopts
        assert (worker.segment.agent.owner == Identity.of(os.getpid())) == adopts
        assert process.poll() is None


def test_an_agent_takes_over_the_ranks_that_can_be_read(tmp_path: Path) -> None:
    """One is damaged, one was left by another version, one is not there; and two are as they should be."""
    try:
        for rank in range(4):
            create_as_agent(RUN, rank)
        os.truncate(create_as_agent(RUN, 1).files.path("control"), 7)
        with create_as_agent(RUN, 2).files.path("control").open("r+b") as file:
            file.seek(8)
            file.write(bytes(8))
        agent = Agent(RUN, tmp_path)
        agent.act(messages.Adopt(ranks=[0, 1, 2, 3, 4]))
        assert sorted(agent.workers) == [0, 3]
        assert all(worker.segment.agent.owner == Identity.of(os.getpid()) for worker in agent.workers.values())
        assert [seen.rank for seen in agent.look()] == [0, 3]
    finally:
        for rank in range(4):
            RankFiles(RUN, rank).remove()
        leave(RUN)


def test_an_agent_says_of_which_attempt_it_has_found_workers(tmp_path: Path) -> None:
    """Its launcher may not know; workers of another container are not its to take over, nor is what it cannot read."""
    dead = Identity(4711, 1, *(getattr(Identity.of(os.getpid()), name) for name in ("boot", "space")))
    try:
        for rank, (attempt, worker) in enumerate([(1, dead), (3, Identity()), (7, replace(dead, space=1)), (9, dead)]):
            agent = create_as_agent(RUN, rank).agent
            agent.attempt, agent.worker = attempt, worker
        os.truncate(RankFiles(RUN, 3).path("control"), 7)
        line = [sys.executable, "-P", "-m", "meshmend.run.agent", RUN, str(tmp_path), "127.0.0.1"]
        said = subprocess.run(line, input=b"", capture_output=True, timeout=DEADLINE).stdout
        hello = unpack(json.loads(said.splitlines()[0]))
        assert isinstance(hello, Hello) and hello.attempt == 3
    finally:
        for rank in range(4):
            RankFiles(RUN, rank).remove()
        leave(RUN)


def test_an_agent_that_takes_over_sees_what_the_dead_have_taken(tmp_path: Path) -> None:
    """Nobody is left there, so any other command of the user removes the memory."""
    code = f"""
import os
from meshmend.base.processes import Identity
from meshmend.job.shm import create_as_agent, open_as_worker
agent = create_as_agent({RUN!r}, 0)
agent.agent.worker = Identity.of(os.getpid())
open_as_worker({RUN!r}, 0).worker.taken = 9, 3, 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE)
    agent = Agent(RUN, tmp_path)
    try:
        agent.act(messages.Adopt(ranks=[0]))
        (seen,) = agent.look()
        assert (seen.status, seen.taken) == (KILLED, (3, 1))
    finally:
        agent.act(messages.Remove())
        leave(RUN)


def test_a_start_that_is_told_nonsense_is_one_that_failed(tmp_path: Path) -> None:
    agent = Agent(RUN, tmp_path)
    try:
        agent.act(messages.Start(rank=0, founders=1, wanted=1, ranks=1, resume="\0", every="", script=["a.py"]))
        assert [(seen.rank, bool(seen.unstarted)) for seen in agent.look()] == [(0, True)]
    finally:
        agent.act(messages.Remove())
        for rank in ranks_of(RUN):
            RankFiles(RUN, rank).remove()
        leave(RUN)


def test_an_attempt_ends_what_the_one_before_has_left_in_ranks_it_does_not_have(tmp_path: Path) -> None:
    """As after `--resume -n 1` of a run with three workers, two of them cut off from its launcher."""
    (tmp_path / "script.py").write_text("import time; time.sleep(100)")
    script, ended = [str(tmp_path / "script.py")], Agent(RUN, tmp_path)
    agent = Agent(RUN, tmp_path)
    try:
        for rank in range(3):
            ended.act(messages.Start(rank=rank, founders=3, wanted=3, ranks=3, resume="", every="", script=script))
        container = create_as_agent(RUN, 3)
        container.agent.worker = replace(Identity.of(os.getpid()), space=1)
        agent.act(
            messages.Start(rank=0, founders=1, wanted=1, ranks=1, epoch=Epoch(1), resume="", every="", script=script)
        )
        for worker in ended.workers.values():
            assert worker.child is not None and worker.child.wait(60) == -signal.SIGKILL
        assert ranks_of(RUN) == [0, 3]
    finally:
        agent.act(messages.Remove())
        leave(RUN)


def test_an_agent_refuses_a_host_where_mpirun_would_use_what_another_user_put_there(tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root, to act as another user in a /dev/shm of its own")
    plant = f"import os; os.setuid(65534); os.mkdir('/dev/shm/meshmend-{os.geteuid()}', 0o777)"
    line = f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm && {shlex.join([sys.executable, '-c', plant])} || exit 9"
    agent = shlex.join([sys.executable, "-m", "meshmend.run.agent", RUN, str(tmp_path)])
    command = ["unshare", "-m", "sh", "-c", f"{line}; {agent}"]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert found.returncode == 1 and found.stdout == "" and found.stderr.count("\n") == 1, found
    assert f"/dev/shm/meshmend-{os.geteuid()} " in found.stderr


def test_nothing_of_mpirun_outlives_a_run_on_this_host(worker: LocalWorker, tmp_path: Path) -> None:
    """Its daemon on another host notices late that mpirun is gone, and until then it may start couriers."""
    agent = Agent(RUN, tmp_path)
    agent.workers[0] = worker
    (tmp_path / "prted").symlink_to(sys.executable)
    words = ["-c", "import time; time.sleep(100)", "--prtemca", "prte_remote_tmpdir_base"]
    ours = subprocess.Popen([str(tmp_path / "prted"), *words, str(world_folder(RUN, 3))])
    others = [
        subprocess.Popen([str(tmp_path / "prted"), *words, "/dev/shm/meshmend-0/another/world-3"]),
        subprocess.Popen([sys.executable, *words, str(world_folder(RUN, 3))]),  # whoever looks at it
    ]
    try:
        agent.act(messages.Remove())
        assert ours.wait(60) == -signal.SIGKILL
        assert [one.poll() for one in others] == [None, None]
    finally:
        for one in (ours, *others):
            one.kill()
            one.wait()


def test_memory_of_worlds_that_are_over_is_given_back(worker: LocalWorker, tmp_path: Path) -> None:
    agent = Agent(RUN, tmp_path)
    agent.workers[0] = worker
    for number in range(1, 5):
        (world_folder(RUN, number) / "segment").write_bytes(bytes(1000))
    agent.act(messages.Enter(world=3, mpirun=1, formed=0, fresh=False, wanted=1))
    folder = worker.segment.files.folder
    assert sorted(path.name for path in folder.glob("world-*")) == ["world-3", "world-4"]  # 4 is being prepared


@pytest.mark.parametrize("paused", [False, True])
def test_a_worker_that_said_it_pauses_owes_nothing(
    worker: LocalWorker, paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier, record = open_as_courier(RUN, 0), open_as_worker(RUN, 0).worker
    courier.courier.active = True
    for now in range(50):  # a pace of one sign per second
        record.progress = now
        CourierSide(courier).ask_part(now, (0,))
        worker.poll_pulse(now)
    record.paused = paused
    monkeypatch.setattr(local_worker, "doing", lambda _: (Doing.STOPPED, 0.0))
    for tick in range(50, 60):
        worker.poll_pulse(tick)
    assert worker.still == (MOVES if paused else STOPPED)


def test_one_that_already_ends_is_not_said_to_have_been_ended_by_us(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its courier goes with it at once, and the launcher may miss that before the worker is gone."""
    worker.segment.agent.worker = replace(Identity.of(os.getpid()), number=7, born=1)
    stat = ["R", *"12345", str(EXITING), *"789", *"0123456789", *"0123456789"]
    stat[19] = "1"
    monkeypatch.setattr(processes, "_stat", lambda _: stat)
    assert processes.is_alive(7, 1)
    worker.kill(Cause.LOST_COURIER)
    assert worker.cause is Cause.NONE


def test_a_courier_that_comes_for_a_dead_worker_is_ended_too(
    worker: LocalWorker, process: subprocess.Popen[bytes]
) -> None:
    courier = open_as_courier(RUN, 0).courier
    right = Identity.of(process.pid)
    courier.process = right
    worker.end_courier()
    assert is_alive(process.pid)
    worker.status = -signal.SIGKILL
    for wrong in others_with_its_number(right):
        courier.process = wrong
        worker.end_courier()
        assert is_alive(process.pid)
    courier.process = right
    worker.end_courier()
    assert process.wait(60) == -signal.SIGKILL


def test_a_courier_is_lost_until_its_world_is_cleared(worker: LocalWorker, process: subprocess.Popen[bytes]) -> None:
    courier = open_as_courier(RUN, 0).courier
    assert worker.observe().courier is CourierState.NONE
    courier.process = Identity.of(process.pid)
    worker.segment.agent.world = courier.world = 1
    assert worker.observe().courier is CourierState.ALIVE
    process.kill()
    process.wait()
    assert worker.observe().courier is CourierState.LOST
    worker.clear()
    assert worker.observe().courier is CourierState.NONE


def test_a_courier_that_needs_a_world_is_stuck_at_once_and_a_slow_repair_later(worker: LocalWorker) -> None:
    courier = open_as_courier(RUN, 0).courier
    courier.world = 1
    seen = []
    for phase, since in [
        (CourierPhase.CARRYING, 0.0),
        (CourierPhase.REPAIRING, time.monotonic()),
        (CourierPhase.REPAIRING, time.monotonic() - REPAIR - 1),
        (CourierPhase.NEEDS_WORLD, time.monotonic()),
    ]:
        courier.phase_since, courier.phase = since, phase
        seen.append(worker.observe().stuck)
    assert seen == [False, False, True, True]
    worker.segment.agent.world = 1
    worker.clear()
    assert not worker.observe().stuck


def test_it_is_seen_whether_a_worker_is_in_a_lane(worker: LocalWorker) -> None:
    side = open_as_worker(RUN, 0)
    for inside in (True, False):
        side.worker.inside = inside
        assert worker.observe().outside is not inside


def test_a_halt_is_not_taken_back_by_a_release(worker: LocalWorker) -> None:
    for order, stands in [
        (Order.RELEASE, Order.RELEASE),
        (Order.HALT_AND_SAVE,) * 2,
        (Order.RELEASE, Order.HALT_AND_SAVE),
    ]:
        tell(worker.segment, order)
        mail = worker.segment.agent.order
        assert mail is not None and mail.body.order is stands
    assert not worker.observe().over


def test_a_worker_that_hangs_writes_its_stack_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(
        "import time\n\ndef hang():\n    open('began', 'w').close(); time.sleep(100)  # in one line\n\nhang()"
    )
    agent = Agent(RUN, tmp_path)
    try:
        script = [str(tmp_path / "script.py")]
        agent.act(messages.Start(rank=0, founders=1, wanted=1, ranks=1, resume="", every="", script=script))
        wait_for((tmp_path / "began").exists)
        agent.act(messages.Kill(rank=0, cause=Cause.HANG))
        wait_for(lambda: agent.look()[0].status is not None)
        assert agent.look()[0].cause is Cause.HANG
        assert 'script.py", line 4 in hang' in (tmp_path / "output" / "worker-0.log").read_text()
    finally:
        agent.act(messages.Remove())
        leave(RUN)


def test_a_worker_is_killed_for_a_cause(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time; time.sleep(100)")
    agent = Agent(RUN, tmp_path)
    try:
        script = [str(tmp_path / "script.py")]
        agent.act(
            messages.Start(rank=0, founders=1, wanted=1, ranks=1, epoch=Epoch(3), resume="", every="", script=script)
        )
        assert agent.workers[0].segment.agent.attempt == 3
        agent.act(messages.Kill(rank=0, cause=Cause.HANG, epoch=Epoch(3, 1)))
        deadline = time.monotonic() + 60
        while (seen := agent.look()[0]).status is None and time.monotonic() < deadline:
            agent.wait()
        assert (seen.status, seen.cause) == (-signal.SIGKILL, Cause.HANG)
    finally:
        agent.act(messages.Remove())
        leave(RUN)
    assert agent.look() == []


@pytest.fixture
def calm(worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent that looks at everything only once in a lifetime, and a worker of its that computes at a known pace."""
    monkeypatch.setattr(agent_module, "AGENT_REST", 1e6)
    worker.seen = RankSeen(0, courier=CourierState.ALIVE, world=1, standby=1, agreed=1, active=True)
    for sign in range(20):
        worker.pulse.still(sign, True, True, 0.01 * sign, lambda: (Doing.RUNNING, 0.0))
    assert worker.calm and 0 < worker.pace < 0.01
    agent = Agent(RUN, tmp_path)
    agent.workers[0] = worker
    return agent


def test_while_all_is_calm_an_agent_polls_pulses_alone(
    calm: Agent, worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[float] = []

    def poll_pulse(now: float) -> None:
        polls.append(now)
        worker.still = PAUSES if len(polls) == 5 else MOVES

    monkeypatch.setattr(worker, "poll_pulse", poll_pulse)
    monkeypatch.setattr(worker, "observe", lambda: pytest.fail("it looked at everything"))
    calm.wait()
    assert len(polls) == 5, "it returns when a worker has paused for longer than ever"


def test_an_exit_wakes_an_agent_while_all_is_calm(
    calm: Agent, worker: LocalWorker, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.segment.agent.worker = Identity.of(process.pid)
    polls: list[float] = []

    def poll_pulse(now: float) -> None:
        polls.append(now)
        if len(polls) == 3:
            process.kill()

    monkeypatch.setattr(worker, "poll_pulse", poll_pulse)
    calm.wait()
    assert len(polls) >= 3 and process.wait(60) == -signal.SIGKILL


def test_an_agent_looks_at_everything_now_and_then(calm: Agent, worker: LocalWorker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_module, "AGENT_REST", 0.1)
        patch.setattr(worker, "poll_pulse", lambda _: None)
        calm.wait()


def test_the_death_of_mpirun_wakes_an_agent_while_all_is_calm(
    calm: Agent, worker: LocalWorker, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "poll_pulse", lambda _: process.kill())
    calm.wait(mpiruns=[process.pid])
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    "news", [{"still": 1}, {"courier": CourierState.LOST}, {"agreed": 0}, {"saving": True}, {"exiting": True}], ids=str
)
def test_an_agent_follows_closely_what_is_not_calm(calm: Agent, worker: LocalWorker, news: dict[str, object]) -> None:
    assert worker.seen is not None
    worker.seen = replace(worker.seen, **news)
    calm.wait()  # until the next poll, not for a lifetime


def test_an_agent_ignores_commands_of_an_earlier_attempt_than_its_workers(
    worker: LocalWorker, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """As of a launcher that another one has replaced while it was stopped."""
    worker.segment.agent.worker, worker.segment.agent.attempt = Identity.of(process.pid), 2
    agent = Agent(RUN, tmp_path)
    agent.act(messages.Adopt(ranks=[0]))
    assert [seen.epoch for seen in agent.look()] == [Epoch(2)] and agent.epoch == Epoch(2)
    agent.act(messages.Kill(rank=0, cause=Cause.RESTARTED, epoch=Epoch(1, 4, 1)))
    assert agent.workers[0].cause is Cause.NONE and process.poll() is None
    agent.act(messages.Kill(rank=0, cause=Cause.RESTARTED, epoch=Epoch(2)))
    assert process.wait(60) == -signal.SIGKILL


def test_a_worker_whose_agent_is_stopped_and_cut_off_ends_by_itself(
    worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent ends first, as it hears nothing from its launcher: for its worker, one that is stopped is there."""
    code = "import sys; from meshmend.run.agent import __main__ as it; it.AGENT_ALONE = 1; it.main(*sys.argv[1:])"
    line = [sys.executable, "-P", "-c", code, RUN, str(tmp_path), "127.0.0.1"]
    ended: list[WorkerSegment] = []
    monkeypatch.setattr(worker_module, "halt_alone", ended.append)
    monkeypatch.setattr(worker_module, "OWNER_POLL", 0.01)
    monkeypatch.setattr(worker_module, "ORPHAN", 0.1)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout is not None
            agent.stdout.readline()  # its hello
            worker.segment.agent.owner = Identity.of(agent.pid)
            agent.send_signal(signal.SIGSTOP)
            segment = open_as_worker(RUN, 0)
            worker_module.end_with_owner(segment)
            assert ended == [segment] and agent.wait(DEADLINE) == -signal.SIGKILL
        finally:
            agent.kill()


COMMANDS: list[Notice] = [
    messages.Adopt(ranks=[1, 2]), messages.Clear(only=None), messages.Beat(), messages.Remove(),
    messages.Halt(writer=-1, epoch=Epoch(1, 2, 3)),
    messages.Kill(rank=1, cause=Cause.CUT_OFF), messages.Enter(world=2, mpirun=7, formed=1, fresh=False, wanted=2),
    messages.Start(rank=0, founders=1, wanted=1, ranks=2, resume="", every="auto", script=["a.py"]),
    messages.Release(rank=3), messages.Open(world=2), messages.KeepWarm(count=1, script=["a.py"]),
    messages.Secret(secret="00ff" * 16),
]  # fmt: skip


def test_messages_arrive_as_they_were_sent() -> None:
    assert {type(command) for command in COMMANDS} == set(Notice.kinds.values())
    for command in COMMANDS:
        assert unpack_command(json.loads(json.dumps(pack(command)))) == command
    seen = RankSeen(3, status=-9, cause=Cause.HANG, courier=CourierState.LOST, error=WorkerError(1, "e", "t", True))
    report = Report(observations=[seen], did=2, output=[(3, "line")], epoch=Epoch(0, 2, 1))
    assert unpack(json.loads(json.dumps(pack(report)))) == report
    hello = Hello(port=5, version=VERSION, address="10.1.2.3")
    assert unpack(json.loads(json.dumps(pack(hello)))) == hello


@pytest.mark.parametrize(("hello", "version"), [({"port": 1, "version": VERSION + 1}, VERSION + 1), ({"port": 1}, 1)])
def test_an_agent_of_another_version_is_refused_with_both_versions(
    tmp_path: Path, hello: dict[str, int], version: int
) -> None:
    script = tmp_path / "other-agent"
    script.write_text(f"#!{sys.executable}\nprint('''{json.dumps(hello)}''', flush=True)\ninput()\n")
    script.chmod(0o700)
    remote = Remote(RUN, tmp_path, "far", str(script), new_secret())
    try:
        deadline = time.monotonic() + 60
        while not remote.closed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert remote.closed and not remote.ready
        assert f"version {version}" in remote.why() and f"version {VERSION}" in remote.why() and "far" in remote.why()
    finally:
        remote.drop()
        for thread in threading.enumerate():
            if thread.name == "agent on far":
                thread.join(60)


@pytest.mark.parametrize(
    ("flag", "status"), [("", KILLED), ("finished", DONE), ("halted", HALTED)], ids=["killed", "finished", "halted"]
)
def test_a_worker_that_was_taken_over_leaves_word_of_how_it_ended(worker: LocalWorker, flag: str, status: int) -> None:
    """It is no child of the agent that took over, which cannot ask the kernel for its status."""
    child = subprocess.Popen(["true"])
    worker.segment.agent.worker = Identity.of(child.pid)
    child.wait()
    if flag:
        setattr(open_as_worker(RUN, 0).worker, flag, True)
    worker.poll_exit()
    assert worker.status == status


def test_an_agent_sees_that_a_worker_stops(worker: LocalWorker) -> None:
    assert not worker.observe().halts
    open_as_worker(RUN, 0).worker.orphaned = True
    assert worker.observe().halts
