"""Every message has a sentence, and the sentence holds its values; exceptions are told once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from meshmend.base.units import FEW, workers
from meshmend.run import news
from meshmend.run.console import CAUSES, Console, announcement, ending, halt_reason, sentence, world_reason
from meshmend.run.supervisor import messages as m
from meshmend.run.supervisor.observations import Cause, WorkerError

ERROR = WorkerError(
    step=7, error="ValueError: no such digit", trace="Traceback\nValueError: no such digit", mistake=False
)
MESSAGES: list[tuple[m.Message, list[str]]] = [
    (m.WorkerEnded(3, 9, Cause.NONE), ["3", "status 9"]),
    (m.WorkerEnded(3, -15, Cause.NONE), ["3", "SIGTERM"]),
    (m.WorkerEnded(3, -35, Cause.NONE), ["3", "signal 35"]),
    (m.WorkerEnded(3, 0, Cause.NONE, early=True), ["3", "mm.Job", "break"]),
    *((m.WorkerEnded(3, -9, cause), ["3", CAUSES[cause]]) for cause in CAUSES),
    (m.WorkerRaised(3, ERROR), ["3", "7", "ValueError: no such digit"]),
    (m.JoinFailed((1, 2)), ["workers 1 and 2", "couriers.log"]),
    (m.StartFailed(3, "no room in /dev/shm"), ["3", "no room in /dev/shm"]),
    (m.GivenUp(3, 8), ["3", "8"]),
    (m.FirstBusy(0), ["worker 0", "job.pause()", "job.evaluate"]),
    (m.WorkerEnded(0, -9, Cause.HANG, outside=True), ["worker 0", "job.pause()", "job.evaluate"]),
    (m.AllStill(), ["Ctrl-C"]),
    (m.AgentReplaced("node7"), ["node7"]),
    (m.HostLost("node7", (3, 4)), ["node7", "3", "4"]),
    (m.HostLost("node7", ()), ["node7", "no workers"]),
    (m.HostBack("node7"), ["node7"]),
    (m.Replacing(5), ["5"]),
    (m.HostAdded("node8", (4, 5)), ["node8", "4", "5"]),
    (m.Split(("node7", "node8"), (3, 4), (5,)), ["node7", "node8", "3", "4", "5"]),
    (m.Halting(m.Signalled("SIGTERM"), checkpoint=True), ["SIGTERM", "checkpoint", "Ctrl-C"]),
    (m.Halting(m.Signalled("SIGTERM"), checkpoint=False), ["SIGTERM", "without another checkpoint"]),
    (m.Restarting("step-8"), ["step-8"]),
    (m.Restarting(""), ["beginning"]),
    (m.RestartsExhausted(3, "step-8"), ["3", "step-8"]),
    (m.RestartsExhausted(3, ""), ["3", "beginning"]),
]
NEWS: list[tuple[news.News, list[str]]] = [
    (news.WorldEntered(2, m.MpirunLost(), {}), ["world 2", "mpirun was lost"]),
    (news.WorldEntered(1, m.Begin(), {0: 11, 1: 12}, "r", 5, 6), ["run r, launcher 5, mpirun 6", "processes 11 12"]),
    (news.WorldCommand(2, ["mpirun", "a b"]), ["world 2", "mpirun 'a b'"]),
    (news.Unwritten((0, 1), Path("f"), "quota"), ["workers 0 and 1", "f", "quota"]),
    (news.Unwritten((), Path("f"), "quota"), ["launcher", "f", "quota"]),
    (news.Written((1,), Path("f")), ["worker 1", "f"]),
    (news.Written((), Path("f")), ["launcher", "f"]),
    (news.CheckpointUnwritten(1, "quota"), ["worker 1", "quota"]),
    (news.CannotResume(Path("f"), "no right"), ["f", "no right"]),
    (news.CourierSaid("sums go over 2x2"), ["sums go over 2x2"]),
    (news.ActionFailed("no room"), ["no room"]),
    (news.LauncherFailed("r", "ValueError: x", Path("log")), ["ValueError: x", "log", "--attach r"]),
    (news.TerminalLost(Path("log")), ["SIGHUP", "log"]),
    (news.DiskFull(Path("runs/r")), ["disk full at runs/r"]),
    (news.DiskFreed(), ["free space"]),
    (news.DamagedCheckpoint("step-8 is damaged"), ["step-8 is damaged"]),
    (news.Resuming("step-8"), ["step-8"]),
    (news.Resuming(""), ["the beginning"]),
    (news.NothingToResume("r"), ["run r is done"]),
    (news.AttachingInstead("r", {"b": [11, 12], "c": [13]}), ["processes 11 12 on b, process 13 on c"]),
    (news.HostRefused("b", "no room"), ["host b", "no room"]),
    (news.NoAgentThere("b", "no route"), ["host b", "no route"]),
    (news.HostAnnounced("r", "b", 1), ["run r", "1 worker on b"]),
    (news.StrangerRefused("10.0.0.1"), ["10.0.0.1", "secret"]),
    (news.CanResume("r"), ["--resume r"]),
    (news.Done("r", 10), ["done: 10 steps", "audit r"]),
    (news.Done("r", 1, 2, 3), ["2 jobs, the last with 1 step, 3 failures"]),
]
HALTS: list[tuple[m.HaltReason, list[str]]] = [
    (m.Signalled("SIGINT"), ["SIGINT"]),
    (m.TooFew(1, 2), ["1 worker left", "--min-workers 2"]),
    (m.TooFew(3, 4), ["3 workers left", "--min-workers 4"]),
    (m.Stopped(), ["attached"]),
    (m.StateLost(), ["state"]),
    (m.MemoryRemoved(("node7",)), ["node7", "shared memory"]),
    (m.Standstill(1800.0), ["30 min"]),
    (m.Minority((0,), (0, 1, 2)), ["only 1 of 3 workers (worker 0) is"]),
    (m.Minority((), (1, 2)), ["workers 1 and 2"]),
    (m.WrongSide(("node7",), (0,), (1, 2)), ["node7", "worker 0", "workers 1 and 2"]),
    (m.NoCourierEver(8), ["8"]),
    (m.BadStart((1,), 2), ["worker 1", "2"]),
    (m.NoProgress(24, 7), ["24", "step 7"]),
]
WORLDS: list[tuple[m.WorldReason, list[str]]] = [
    (m.Begin(job=3), ["job 3"]),
    (m.Attached(), []),
    (m.Restarted(), []),
    (m.Joined((3,)), ["worker 3 joins"]),
    (m.Joined((3, 4)), ["workers 3 and 4 join"]),
    (m.MpirunLost(), ["mpirun"]),
    (m.CouriersStopped(), ["mpirun", "stopped"]),
    (m.RepairStuck(), []),
    (m.HostGone("node7"), ["node7"]),
    (m.NetworkSplit(("node7", "node8")), ["node7", "node8"]),
]


@pytest.mark.parametrize(("message", "values"), NEWS, ids=lambda value: type(value).__name__)
def test_an_announcement_holds_the_values_of_its_message(message: news.News, values: list[str]) -> None:
    check(announcement(message), values)


def test_every_kind_of_news_has_a_line_here() -> None:
    assert {type(message) for message, _ in NEWS} == set(get_args(news.News))


@pytest.mark.parametrize(("message", "values"), MESSAGES, ids=lambda value: type(value).__name__)
def test_a_sentence_holds_the_values_of_its_message(message: m.Message, values: list[str]) -> None:
    check(sentence(message), values)


@pytest.mark.parametrize(("reason", "values"), HALTS, ids=lambda value: type(value).__name__)
def test_a_halt_is_told_with_its_values_also_as_a_message(reason: m.HaltReason, values: list[str]) -> None:
    check(halt_reason(reason), values)
    check(sentence(m.Halting(reason, checkpoint=True)), values)


@pytest.mark.parametrize(("reason", "values"), WORLDS, ids=lambda value: type(value).__name__)
def test_a_world_is_told_with_its_values(reason: m.WorldReason, values: list[str]) -> None:
    check(world_reason(reason), values)


def check(text: str, values: list[str]) -> None:
    assert all(value in text for value in values), text
    assert text and "\n" not in text and not text.endswith(".") and text[0].islower() | text[0].isdigit()


@pytest.mark.parametrize(
    ("kinds", "examples"),
    [(m.Message, MESSAGES), (m.HaltReason, HALTS), (m.WorldReason, WORLDS)],
    ids=["messages", "halts", "worlds"],
)
def test_every_type_has_an_example_here(kinds: Any, examples: list[tuple[Any, list[str]]]) -> None:
    assert {type(message) for message, _ in examples} == {*get_args(kinds)}
    for message, values in examples:  # a message with values is checked for some
        assert values or not fields(message), message


def test_every_cause_has_words() -> None:
    assert {*CAUSES} == {*Cause} - {Cause.NONE} and len({*CAUSES.values()}) == len(CAUSES)


def test_many_hosts_are_not_all_listed() -> None:
    text = sentence(m.Split(tuple(f"node{i}" for i in range(FEW + 3)), (1,), (0,)))
    assert "node0" in text and f"node{FEW}" not in text and "3 more hosts" in text


@pytest.mark.parametrize(("status", "words"), [(0, "status 0"), (3, "status 3"), (-9, "SIGKILL"), (-35, "signal 35")])
def test_how_a_process_ended(status: int, words: str) -> None:
    assert ending(status) == words


def test_ranks_in_words() -> None:
    assert [workers([]), workers([3]), workers([1, 2]), workers([1, 2, 3]), workers(range(8))] == [
        "no workers", "worker 3", "workers 1 and 2", "workers 1, 2 and 3", "workers 0 to 7",
    ]  # fmt: skip


def test_an_exception_is_shown_in_full_once(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    for rank in (2, 0, 1):
        console.tell(m.WorkerRaised(rank, ERROR))
    full, *others = capsys.readouterr().err.split("meshmend: ")[1:]
    assert "worker 2" in full and "step 7" in full and ERROR.trace in full
    assert len(others) == 2 and all(ERROR.error not in line and "worker 2" in line for line in others)
    assert "worker 0" in others[0] and "worker 1" in others[1]


def test_a_mistake_of_the_user_is_one_line_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    mistake = WorkerError(step=0, error="16 lanes are too few", trace="Traceback …", mistake=True)
    for rank in range(3):
        console.tell(m.WorkerRaised(rank, mistake))
    assert capsys.readouterr().err == "meshmend: 16 lanes are too few\n"


def test_lines_of_workers_have_their_rank(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.lines([(3, "loss 0.5")])
    console.say("done")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("[3] loss 0.5\n", "meshmend: done\n")
