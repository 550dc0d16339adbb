"""The launcher: the shell that shows the supervisor what agents see, and has its decisions carried out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from meshmend.base.status import ABANDONED, DONE, FAILED, HALTED, MISUSED
from meshmend.errors import JobError
from meshmend.run.agent import messages
from meshmend.run.clusters.hosts import Host
from meshmend.run.journal import Journal
from meshmend.run.launcher import Launcher
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor import actions
from meshmend.run.supervisor import messages as m
from meshmend.run.supervisor.actions import Action
from meshmend.run.supervisor.observations import Cause, RankSeen, StopSignal
from meshmend.run.world.world import World, output_of
from meshmend.telemetry import Began, Component, Died, Ended, Epoch, Formed, How, Started, Why, read
from tests.processes import DEADLINE


class Recorder:
    """An agent that notes what it is told."""

    closed = False

    def __init__(self, views: list[RankSeen] | None = None) -> None:
        self.told: list[messages.Command] = []
        self.views = views or []

    def act(self, command: messages.Command) -> None:
        self.told.append(command)

    def look(self) -> list[RankSeen]:
        return self.views

    def output(self) -> list[tuple[int, str]]:
        return [(view.rank, "a line") for view in self.views]


class Scripted(Launcher):
    """A launcher whose supervisor has this to say, and nothing else."""

    finish = actions.Finish(DONE)

    def _watch(self) -> actions.Finish:
        return self.finish


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MESHMEND_RUNS", raising=False)
    return RunSpec(run="made", script=["train.py"], workers=3, hosts=[Host("a", 2), Host("b", 1)])


@pytest.fixture
def handlers() -> Iterator[None]:
    """What signals did before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def launcher(spec: RunSpec) -> Launcher:
    made = Launcher(spec)
    made.pool.agents = cast(Any, {"a": Recorder(), "b": Recorder([RankSeen(2, process=77)])})
    return made


def told(launcher: Launcher, host: str) -> list[messages.Command]:
    return cast(Recorder, launcher.pool.agents[host]).told


def seen(**values: Any) -> RankSeen:
    return RankSeen(2, process=77, world=5, shrink=1, step=4, **values)


def death(**values: Any) -> actions.NoteDeath:
    return actions.NoteDeath(seen(**values), member=True, step=4)


def act(launcher: Launcher, action: Action) -> None:
    launcher._act(action, began=5)


def mpirun(number: int, memory: Path) -> World:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    return World(number, ["mpirun"], process, memory)


@pytest.mark.parametrize(
    ("action", "a", "b"),
    [
        (actions.Adopt("b", (2,)), [], [messages.Adopt(ranks=(2,))]),
        (actions.Kill(2, "b", Cause.HANG), [], [messages.Kill(rank=2, cause=Cause.HANG)]),
        (actions.Release(2, "b"), [], [messages.Release(rank=2)]),
        (actions.Remove(("b",)), [], [messages.Remove()]),
        (actions.Halt(1), [messages.Halt(writer=1)], [messages.Halt(writer=1)]),
        (actions.ClearCouriers(), [messages.Clear()], [messages.Clear()]),
        (actions.Kill(2, "gone", Cause.HANG), [], []),  # it was lost a moment ago: the next observations show it
        (actions.Remove(("a", "gone")), [messages.Remove()], []),
    ],
)
def test_agents_are_told(launcher: Launcher, action: Action, a: list[Any], b: list[Any]) -> None:
    act(launcher, action)
    assert (told(launcher, "a"), told(launcher, "b")) == (a, b)


def test_a_start_is_told_and_written_down(launcher: Launcher) -> None:
    launcher.state.attempt = 1
    act(launcher, actions.Start(2, "b", resume="step-4"))
    start = messages.Start(
        rank=2,
        founders=3,
        wanted=3,
        ranks=11,
        resume="step-4",
        every="",
        script=["train.py"],
        log_every="0",
        epoch=Epoch(1),
    )  # as tests/conftest.py has it
    assert told(launcher, "b") == [start] and told(launcher, "a") == []
    (event,) = read(launcher.spec.folder)
    assert isinstance(event, Started) and (event.rank, event.process, event.host) == (2, 77, "b")


def test_a_world_is_entered_on_all_hosts_and_killed(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    memory = launcher.spec.folder / "memory"
    memory.mkdir(parents=True)
    world = launcher._worlds[2] = mpirun(2, memory)
    act(launcher, actions.EnterWorld(2, fresh=False, reason=m.HostGone("c"), ranks=(0, 2), wanted=3))
    enter = messages.Enter(world=2, mpirun=world.process.pid, formed=5, fresh=False, wanted=3)
    assert told(launcher, "a") == told(launcher, "b") == [enter]
    (event,) = read(launcher.spec.folder)
    assert isinstance(event, Formed) and (event.epoch, event.ranks, event.why) == (Epoch(0, 2), [0, 2], Why.HOST_LOST)
    assert "world 2" in capsys.readouterr().err
    assert not world.ended
    act(launcher, actions.KillWorld(2))
    assert world.ended and launcher._worlds == {} and not memory.exists()
    assert world.process.stdin is not None
    world.process.stdin.close()


@pytest.mark.parametrize(
    ("action", "kind", "values"),
    [
        (actions.NoteAttempt(3, attached=True), Began, {"epoch": Epoch(3), "attached": True, "workers": 3}),
        (death(status=-9), Died, {"rank": 2, "what": Component.WORKER, "how": How.SIGNAL, "value": 9, "step": 4}),
        (death(status=3), Died, {"rank": 2, "how": How.EXIT, "value": 3, "epoch": Epoch(0, 5, 1)}),
        (death(status=-9, cause=Cause.HANG), Died, {"rank": 2, "how": How.HANG, "member": True}),
        (actions.NoteHostLost("b", (seen(),)), Died, {"what": Component.HOST, "host": "b", "ranks": [2]}),
        (actions.NoteMpirunLost(actions.Loss.LATE), Died, {"what": Component.MPIRUN, "how": How.LATE}),
        (actions.NoteMpirunLost(actions.Loss.GONE), Died, {"what": Component.MPIRUN, "how": How.LOST}),
    ],
)
def test_what_happened_is_written_down(launcher: Launcher, action: Action, kind: type, values: dict[str, Any]) -> None:
    act(launcher, action)
    (event,) = read(launcher.spec.folder)
    assert type(event) is kind and {name: getattr(event, name) for name in values} == values


def test_every_action_is_carried_out_somewhere() -> None:
    """A new kind of action that nobody carries out would be lost in silence."""
    source = "".join(Path(sys.modules[one.__module__].__file__ or "").read_text() for one in (Launcher, Journal))
    for kind in get_args(Action):
        assert f"actions.{kind.__name__}" in source, kind


def test_the_answers_to_questions_are_seen_once(launcher: Launcher) -> None:
    act(launcher, actions.FindCheckpoint())
    act(launcher, actions.Expel("b"))
    seen = launcher._observe()
    assert seen.checkpoint == "" and seen.expelled == {"b": False}  # it could not be made certain
    seen = launcher._observe()
    assert seen.checkpoint is None and seen.expelled == {}


def test_what_agents_see_is_what_the_supervisor_sees(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    launcher._worlds[1] = mpirun(1, launcher.spec.folder / "memory")
    launcher._interrupted(signal.SIGTERM, None)
    seen = launcher._observe()
    assert seen.ranks == {2: RankSeen(2, process=77)} and seen.reachable == {"a", "b"}
    assert seen.signal is StopSignal.TERMINATE and seen.ended_worlds == frozenset()
    assert capsys.readouterr().out == "[2] a line\n"
    world = launcher._worlds[1]
    world.process.communicate("\n", timeout=60)
    seen = launcher._observe()
    assert seen.signal is None and seen.ended_worlds == {1}


def test_a_world_that_ends_while_ranks_are_looked_at_has_not_ended_for_them(launcher: Launcher) -> None:
    """A world ends with the last step, too: ranks that were seen before that do not know it."""
    world = launcher._worlds[1] = mpirun(1, launcher.spec.folder / "memory")

    class Wordy(Recorder):
        def output(self) -> list[tuple[int, str]]:
            world.process.communicate("\n", timeout=60)
            return super().output()

    launcher.pool.agents["b"] = cast(Any, Wordy([RankSeen(2)]))
    assert launcher._observe().ended_worlds == frozenset()


@pytest.mark.usefixtures("handlers")
def test_a_run_without_any_courier_is_a_sentence_with_what_mpirun_printed(spec: RunSpec) -> None:
    output_of(spec).parent.mkdir(parents=True)
    output_of(spec).write_text("first\nno such interface eth9\n")
    launcher = Scripted(spec)
    launcher.finish = actions.Finish(MISUSED, no_world=True)
    with pytest.raises(JobError, match="meshmend doctor") as error:
        launcher.run()
    assert "no such interface eth9" in str(error.value)
    assert [event.status for event in read(spec.folder) if isinstance(event, Ended)] == [MISUSED]


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("finish", "resumable"),
    [
        (actions.Finish(DONE), False),
        (actions.Finish(HALTED, m.Signalled("SIGTERM")), True),
        (actions.Finish(FAILED, m.StateLost()), False),  # there is no checkpoint
        (actions.Finish(FAILED), False),
    ],
)
def test_how_to_resume_is_said_where_that_is_possible(
    spec: RunSpec, finish: actions.Finish, resumable: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Scripted(spec)
    launcher.finish = finish
    assert launcher.run() == finish.status
    assert ("--resume made" in capsys.readouterr().err) == resumable
    assert [event.status for event in read(spec.folder) if isinstance(event, Ended)] == [finish.status]


class Broken(Launcher):
    """A launcher with a mistake in it."""

    def _watch(self) -> actions.Finish:
        raise KeyError("a mistake")


@pytest.mark.usefixtures("handlers")
def test_an_error_of_its_own_leaves_the_workers_to_another_launcher(
    spec: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Broken(spec)
    launcher.pool.agents = cast(Any, {"a": Recorder(), "b": Recorder()})
    assert launcher.run() == ABANDONED
    assert told(launcher, "a") == told(launcher, "b") == []
    said = capsys.readouterr().err
    assert "--attach made" in said and "a mistake" in said and "Traceback" not in said
    assert "Traceback" in (spec.folder / "output" / "launcher.log").read_text()
    assert [event for event in read(spec.folder) if isinstance(event, Ended)] == []


@pytest.mark.parametrize("error", [OSError(11, "Resource temporarily unavailable"), JobError("no room")])
def test_a_world_that_cannot_be_opened_has_ended(
    launcher: Launcher, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_world(*_: object, **__: object) -> World:
        raise error

    monkeypatch.setattr("meshmend.run.launcher.open_world", no_world)
    for number in (1, 2):
        launcher._try(actions.OpenWorld(number, {"a": {0: 7}}), began=5)
        launcher._try(actions.EnterWorld(number, fresh=True, reason=m.Begin(), ranks=(0,)), began=5)
        assert launcher._observe().ended_worlds == {number}
        launcher._try(actions.KillWorld(number), began=5)
    assert launcher._worlds == {} and told(launcher, "a") == [messages.Open(world=1), messages.Open(world=2)]
    assert capsys.readouterr().err.count("meshmend: ") == 1  # said once


@pytest.mark.usefixtures("handlers")
def test_a_terminal_that_is_closed_is_no_signal_to_stop(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> None:
    launcher._lost_terminal(signal.SIGHUP, None)
    assert launcher._observe().signal is None
    assert "launcher.log" in capsys.readouterr().err


def test_a_full_disk_is_said_once_and_so_is_that_it_has_room_again(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("meshmend.telemetry.folder.os.write", full)
        for _ in range(3):
            act(launcher, actions.NoteMpirunLost(actions.Loss.GONE))
            assert launcher._mind_disk() is not None
    assert capsys.readouterr().err.count("meshmend: ") == 1
    assert launcher._mind_disk() is None
    assert capsys.readouterr().err.count("meshmend: ") == 1
    assert len(read(launcher.spec.folder)) == 3


def test_a_launcher_keeps_nothing_of_worlds_that_are_gone(tmp_path: Path) -> None:
    """Of a run of weeks: no object, thread or open file, whether a world was killed or its mpirun ended by itself.

    Counted in a process that does nothing else: this one may have threads, files and garbage of other tests.
    """
    line = [sys.executable, "-m", "tests.run.many_worlds"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        line, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root, "MESHMEND_RUNS": str(tmp_path)},
        capture_output=True, text=True, timeout=DEADLINE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"objects": {}, "threads": 0, "files": 0}
