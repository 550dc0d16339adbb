"""`meshmend run` with real workers, couriers and mpirun, really killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from meshmend.base.processes import born, is_alive
from meshmend.errors import JobError
from meshmend.job.shm.segment import Segment, ranks_of, remove_run
from meshmend.run import entry as start
from meshmend.run.spec import RunSpec
from meshmend.telemetry.events import Repaired, Saved, read
from meshmend.testing import Fault
from tests.jobs.jobs import SCRIPT, Job, wait_for

SHRINK = ["--on-failure", "shrink"]
Undisturbed = Callable[..., str]


def kill(rank: int, step: int, point: str = "compute", kind: str = "kill") -> Fault:
    return Fault(rank=rank, step=step, point=point, kind=kind)


@pytest.mark.parametrize(
    ("words", "faults", "survivors"),
    [
        (["-n", "2"], [], 2),
        ([*SHRINK, "-n", "4"], [kill(2, 5)], 3),
        ([*SHRINK, "-n", "4"], [kill(0, 0)], 3),
        ([*SHRINK, "-n", "4"], [kill(1, 7), kill(3, 7), kill(0, 9)], 1),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "allreduce"), kill(1, 5, "shrink"), kill(2, 5, "exchange")], 1),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "add"), kill(1, 7, "take"), kill(3, 7, "add")], 1),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "take", "courier"), kill(3, 5, "take", "courier")], 2),
        ([*SHRINK, "-n", "3"], [kill(1, 6, "commit"), kill(2, 12, "allreduce", "courier")], 1),
        ([*SHRINK, "-n", "3"], [kill(1, 6, kind="raise"), kill(2, 12, kind="exit")], 1),
        ([*SHRINK, "-n", "3"], [kill(1, 6, "commit", "flip")], 2),
        (["--on-failure", "spare", "-n", "2", "--spares", "1"], [kill(1, 4)], 2),
        (["--on-failure", "spare", "-n", "3", "--spares", "2"], [kill(1, 4), kill(0, 4, "state")], 3),
    ],
)
def test_weights_are_bit_identical_whoever_dies(
    job: Job, words: list[str], faults: list[Fault], survivors: int, undisturbed: Undisturbed
) -> None:
    job.faults = faults
    job.run(*words)
    assert job.status == 0, job.output
    assert job.weights == [undisturbed()] * survivors, job.output
    job.assert_clean()


@pytest.mark.parametrize(
    ("words", "faults", "options", "survivors"),
    [
        ([*SHRINK, "-n", "3"], [kill(1, 5)], [], 2),
        ([*SHRINK, "-n", "3"], [kill(0, 5, "add"), kill(2, 9, "take")], [], 1),
        (["-n", "3"], [kill(1, 5)], ["steps=100", "pause=0.05"], 3),
    ],
)
def test_bf16_on_the_wire(job: Job, words: list[str], faults: list[Fault], options: list[str], survivors: int) -> None:
    """The weights depend on who computed what, but all survivors have the same; 333 do not fill their last place."""
    job.faults = faults
    job.run(*words, script=[SCRIPT, "reduction=float", "wire=bf16", "width=333", *options])
    assert job.status == 0, job.output
    assert len(job.weights) == survivors and len(set(job.weights)) == 1, job.output
    job.assert_clean()


def test_a_spare_does_not_begin_anew_when_all_others_are_dead(job: Job, undisturbed: Undisturbed) -> None:
    job.faults = [kill(1, 14), kill(0, 14, "state")]
    job.run("--on-failure", "spare", "--checkpoint-every", "5", "-n", "2", "--spares", "1")
    assert job.status == 1, job.output
    assert job.output.count("all workers that had the state are dead") == 1, job.output
    job.faults = []
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed()] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("kind", ["hang", "spin", "sleep"])
def test_a_worker_that_hangs_is_found_and_ended(job: Job, kind: str, undisturbed: Undisturbed) -> None:
    job.faults = [kill(2, 10, kind=kind)]
    job.run(*SHRINK, "-n", "3")
    assert job.status == 0, job.output
    assert "worker 2 ended (hang)" in job.output
    assert job.weights == [undisturbed()] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("policy", ["replace", "restart"])
def test_a_dead_worker_is_replaced(job: Job, policy: str, undisturbed: Undisturbed) -> None:
    job.faults = [kill(1, 5)]
    options = ["steps=100", "pause=0.05"]
    job.run("--on-failure", policy, "-n", "3", script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(*options)] * 3, job.output
    job.assert_clean()


def test_mpirun_is_replaceable(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=120", "pause=0.01"]
    job.start("-n", "3", script=[SCRIPT, *options, "gate=60"]).until("step 30 ")
    os.kill(Segment(job.name, 0)["mpirun"], signal.SIGKILL)
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(*options)] * 3, job.output
    assert "world 2 (mpirun was lost)" in job.output
    assert f"done: 120 steps, 1 failure survived; meshmend audit {job.name} proves them" in job.output
    repairs = [event for event in read(job.path) if isinstance(event, Repaired)]
    assert {event.rank for event in repairs} == {0, 1, 2}
    assert all(event.times["re-form"] > 0 for event in repairs)
    job.assert_clean()


def test_a_killed_launcher_can_be_replaced(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=120", "pause=0.01"]
    job.start("-n", "3", script=[SCRIPT, *options, "gate=60"]).until("step 30 ")
    workers = [Segment(job.name, rank)["worker"] for rank in ranks_of(job.name)]
    assert job.process is not None
    job.process.kill()
    job.open_gate()
    job.output += job.process.communicate()[0]
    assert all(is_alive(worker) for worker in workers)
    job.start("--attach", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(*options)] * 3, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_one_who_has_a_launcher_is_not_attached_to(job: Job, tmp_path: Path) -> None:
    job.start("-n", "2", script=[SCRIPT, "steps=20", "gate=10"]).until("step 3 ")
    other = Job(tmp_path, job.name).start("--attach", job.name, script=[], name=False).finish()
    assert (other.status, "is in the hands of process" in other.output) == (2, True), other.output
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output


def test_everything_dies_and_is_resumed(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=60", "pause=0.02"]
    job.start("--checkpoint-every", "10", "-n", "2", script=[SCRIPT, *options, "gate=40"]).until("step 25 ")
    victims = [Segment(job.name, rank)["worker"] for rank in ranks_of(job.name)]
    assert job.process is not None
    job.process.kill()
    for worker in victims:
        os.kill(worker, signal.SIGKILL)
    job.output += job.process.communicate()[0]
    wait_for(lambda: not any(is_alive(worker) for worker in victims))
    job.open_gate()
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert "resuming from step-" in job.output
    assert job.weights == [undisturbed(*options)] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_too_few_are_left(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=40"]
    job.faults = [kill(1, 10), kill(2, 20)]
    job.run(*SHRINK, "-n", "2:3", script=[SCRIPT, *options])
    assert job.status == 75, job.output
    assert "1 workers are left, and at least 2 were asked for: ending, with a checkpoint" in job.output
    assert [event.step for event in read(job.path) if isinstance(event, Saved)][-1] >= 20
    job.faults = []
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(*options)] * 3, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_sigterm_writes_a_checkpoint(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=100", "pause=0.02"]
    job.start("-n", "2", script=[SCRIPT, *options, "gate=60"]).until("step 20 ")
    assert job.process is not None
    job.process.terminate()
    job.until("SIGTERM").open_gate()
    job.finish()
    assert job.status == 75, job.output
    assert f"meshmend run --resume {job.name}" in job.output
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(*options)] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_restart_from_disk_for_comparison(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=40"]
    job.faults = [kill(1, 25)]
    words = ["--on-failure", "checkpoint", "--checkpoint-every", "10", "-n", "2"]
    job.run(*words, script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert "restarting everything from" in job.output
    assert job.weights == [undisturbed(*options)] * 2, job.output
    job.assert_clean()


def test_an_exception_is_told_once(job: Job) -> None:
    job.run("-n", "3", script=[SCRIPT, "wrong=5"])
    assert job.status == 1, job.output
    assert job.output.count("ValueError: this data is wrong in step 5") == 1, job.output
    assert job.output.count("raised in step 5:") == 1
    assert "raised the same in step 5" in job.output
    assert "in gradient" in job.output
    assert "meshmend/train" not in job.output.split("raised in step 5:")[1].split("meshmend:")[0]
    job.assert_clean()


@pytest.mark.parametrize("reduction", ["exact", "float"])
def test_a_step_that_is_not_finite(job: Job, reduction: str) -> None:
    job.run("-n", "2", script=[SCRIPT, "bad=5", f"reduction={reduction}", "nonfinite=error"])
    assert job.status == 1, job.output
    assert "step 5: '0.w' holds NaN or Inf" in job.output
    assert job.output.count("NaN") == 1


def test_a_step_that_is_skipped(job: Job, undisturbed: Undisturbed) -> None:
    options = ["bad=5", "nonfinite=skip"]
    job.faults = [kill(1, 5)]
    job.run(*SHRINK, "-n", "2", script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert "step 5 is skipped" in job.output
    assert job.weights == [undisturbed(*options)], job.output
    job.assert_clean()


@pytest.mark.parametrize(
    ("words", "script", "message"),
    [
        (["-n", "0"], [SCRIPT], "at least 1 worker"),
        (["-n", "two"], [SCRIPT], "cannot read 'two' in --workers"),
        (["-n", "2"], [], "no script was given"),
        (["-n", "2"], ["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--on-failure", "spare"], [SCRIPT], "needs --spares"),
        (["--min-workers", "3", "-n", "2"], [SCRIPT], "at least 3 of 2 workers"),
        (["--hosts", "a:0"], [SCRIPT], "cannot read 'a:0' in --hosts"),
        (["-n", "2", "--checkpoint-every", "often"], [SCRIPT], "checkpoints every 'often'"),
        (["-n", "17"], [SCRIPT], "16 lanes are too few for 17 workers"),
        (["-n", "2"], [SCRIPT, "reduction=odd"], "reduction='odd': choose from"),
        (["-n", "2"], [SCRIPT, "wire=bf16"], "wire='bf16' with reduction='exact'"),
        (["-n", "3"], [SCRIPT, "odd=1"], "the gradients of worker 1 have other leaves, shapes or types"),
    ],
)
def test_mistakes_are_one_sentence(job: Job, words: list[str], script: Sequence[object], message: str) -> None:
    job.run(*words, script=script)
    assert job.status == 2, job.output
    assert job.output.count(message) == 1, job.output
    assert "Traceback" not in job.output


def test_a_name_is_used_once(job: Job) -> None:
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    assert job.status == 0, job.output
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    assert (job.status, "holds a run of that name" in job.output) == (2, True)


def test_a_run_of_the_same_name_in_another_folder_is_left_alone(
    job: Job, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    options = ["steps=120", "pause=0.01"]
    job.start("-n", "2", script=[SCRIPT, *options, "gate=60"]).until("step 20 ")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = Job(elsewhere, job.name).run("-n", "2")
    assert other.status == 2 and other.output.count("\n") == 1, other.output
    assert f"a run {job.name!r} lives on this host already" in other.output
    assert not other.path.exists()
    job.open_gate()
    job.finish()
    assert (job.status, job.weights) == (0, [undisturbed(*options)] * 2), job.output
    job.assert_clean()


def test_what_a_dead_run_of_the_same_name_has_left_is_no_hindrance(job: Job) -> None:
    segment = Segment(job.name, 0, create=True)
    segment["owner"], segment["worker"], segment["born"] = 2**22 + 1, os.getpid(), 1
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    assert job.status == 0, job.output
    job.assert_clean()


def test_workers_that_wait_for_a_launcher_are_not_overrun(job: Job) -> None:
    segment = Segment(job.name, 0, create=True)
    segment["owner"], segment["worker"], segment["born"] = 2**22 + 1, os.getpid(), born(os.getpid())
    job.run("-n", "1")
    segment.remove()
    assert job.status == 2 and f"worker {os.getpid()} waits for run --attach {job.name}" in job.output, job.output


def test_a_run_of_another_user_is_one_sentence(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    Segment(job.name, 0, create=True)
    monkeypatch.setattr(start, "Segment", refuse)
    monkeypatch.setenv("MESHMEND_RUNS", str(job.folder))
    with pytest.raises(JobError, match=r"is another user's: give another --name$"):
        start.launch(RunSpec(run=job.name, script=[str(SCRIPT)], workers=1))
    remove_run(job.name)


@pytest.mark.jobs
def test_one_that_is_stopped_while_it_should_give_its_state_is_found(job: Job, undisturbed: Undisturbed) -> None:
    job.faults = [kill(2, 6), kill(0, 6, "state", "hang")]
    job.run("--on-failure", "spare", "-n", "3", "--spares", "2")
    assert job.status == 0, job.output
    assert "worker 0 ended (hang)" in job.output
    assert job.weights == [undisturbed()] * 3, job.output
    job.assert_clean()
