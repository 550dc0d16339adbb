"""`meshmend run` with real workers, couriers and mpirun, really killed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from meshmend.base.processes import Identity, is_alive, running
from meshmend.base.status import HALTED
from meshmend.job.shm import clean_stale, create_as_agent, leave, presence
from meshmend.job.shm.home import folder_of, runs
from meshmend.job.shm.inspect import members
from meshmend.run.console import halt_reason, sentence
from meshmend.run.supervisor.messages import Halting, MemoryRemoved, StateLost, TooFew
from meshmend.telemetry import Began, How, Opened, Raised, Repaired, Saved, Skipped, Why, read
from meshmend.testing import Fault
from tests.jobs.facts import deaths, one_line, worlds
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
        pytest.param([*SHRINK, "-n", "4"], [kill(0, 0)], 3, marks=pytest.mark.jobs),
        ([*SHRINK, "-n", "4"], [kill(1, 7), kill(3, 7), kill(0, 9)], 1),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "allreduce"), kill(1, 5, "shrink"), kill(2, 5, "exchange")], 1),
        pytest.param(
            [*SHRINK, "-n", "4"], [kill(0, 5, "add"), kill(1, 7, "take"), kill(3, 7, "add")], 1, marks=pytest.mark.jobs
        ),
        ([*SHRINK, "-n", "4"], [kill(0, 5, "take", "courier"), kill(3, 5, "take", "courier")], 2),
        pytest.param(
            [*SHRINK, "-n", "3"], [kill(1, 6, "commit"), kill(2, 12, "allreduce", "courier")], 1, marks=pytest.mark.jobs
        ),
        ([*SHRINK, "-n", "3"], [kill(1, 6, kind="raise"), kill(2, 12, kind="exit")], 1),
        ([*SHRINK, "-n", "3"], [kill(1, 6, "commit", "flip")], 2),
        pytest.param(["--on-failure", "spare", "-n", "2", "--spares", "1"], [kill(1, 4)], 2, marks=pytest.mark.jobs),
        (["--on-failure", "spare", "-n", "2", "--spares", "1"], [kill(1, 0)], 2),
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
        pytest.param([*SHRINK, "-n", "3"], [kill(0, 5, "add"), kill(2, 9, "take")], [], 1, marks=pytest.mark.jobs),
        (["-n", "3"], [kill(1, 5)], ["steps=1000000", "pause=0.02", "crowd=3"], 3),
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
    assert job.output.count(halt_reason(StateLost())) == 1, job.output
    job.faults = []
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed()] * 2, job.output
    job.assert_clean()


def test_shared_memory_that_another_program_removes_costs_no_step(job: Job) -> None:
    """As systemd does at a user's last logout; a worker dies at the same moment, and cannot be replaced any more."""
    job.start("-n", "3", script=[SCRIPT, "steps=1000000", "pause=0.02"]).until("step 5 ")
    victim = members(job.name)[1].process
    shutil.rmtree(folder_of(job.name))
    victim.kill()
    job.finish()
    assert job.status == HALTED, job.output
    assert sum(halt_reason(MemoryRemoved(("localhost",))) in line for line in job.output.splitlines()) == 1, job.output
    (saved,) = [event for event in read(job.path) if isinstance(event, Saved)][-1:]
    assert saved.step > 5
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("kind", ["hang", "spin", "sleep"])
def test_a_worker_that_hangs_is_found_and_ended(job: Job, kind: str, undisturbed: Undisturbed) -> None:
    job.faults = [kill(2, 10, kind=kind)]
    job.run(*SHRINK, "-n", "3")
    assert job.status == 0, job.output
    assert deaths(job) == [(2, How.HANG, 0)]
    assert job.weights == [undisturbed()] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
@pytest.mark.parametrize("policy", ["replace", "restart"])
def test_a_dead_worker_is_replaced(job: Job, policy: str, undisturbed: Undisturbed) -> None:
    job.faults = [kill(1, 5)]
    job.start("--on-failure", policy, "-n", "3", script=[SCRIPT, "steps=100", "gate=60"])
    wait_for((job.path / "events").is_dir)
    wait_for(lambda: sum(isinstance(event, Opened) and event.rank == 1 for event in read(job.path)) == 2)
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed("steps=100")] * 3, job.output
    job.assert_clean()


def test_mpirun_is_replaceable(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=120", "pause=0.01"]
    job.start("-n", "3", script=[SCRIPT, *options, "gate=60"]).until("step 30 ")
    os.kill(members(job.name)[0].mpirun, signal.SIGKILL)
    job.until("step 59 ")
    assert [name for name in job.memory() if name.startswith("world")] == ["world-2"]  # nothing is kept of the first
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(*options)] * 3, job.output
    assert worlds(job) == [(1, Why.BEGIN), (2, Why.MPIRUN_LOST)]
    assert "120 steps, 1 failure " in job.output and f"meshmend audit {job.name}" in job.output
    repairs = [event for event in read(job.path) if isinstance(event, Repaired)]
    assert {event.rank for event in repairs} == {0, 1, 2}
    assert all(event.times["re-form"] > 0 for event in repairs)
    job.assert_clean()


@pytest.mark.parametrize("which", ["courier", "mpirun"])
def test_a_courier_or_mpirun_that_is_stopped_is_replaced(job: Job, which: str, undisturbed: Undisturbed) -> None:
    job.start("-n", "3", script=[SCRIPT, "steps=120", "gate=60"]).until("step 30 ")
    os.kill(getattr(members(job.name)[1], which), signal.SIGSTOP)
    os.kill(members(job.name)[2].worker, signal.SIGKILL)
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert set(job.weights) == {undisturbed("steps=120")}, job.output
    # The number is not said: a world with the replacement may have been opened before, and abandoned.
    assert Why.STOPPED in [why for _, why in worlds(job)]
    job.assert_clean()


def test_couriers_end_with_a_launcher_that_is_killed_while_they_start(job: Job) -> None:
    job.start("-n", "2", script=[SCRIPT, "steps=20"])
    wait_for(lambda: running("meshmend.job.courier", job.name, any_network=True))
    assert job.process is not None
    job.process.kill()
    job.process.communicate()
    wait_for(lambda: not running("meshmend.job.courier", job.name, any_network=True))
    workers = [one.worker for one in members(job.name)]
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    # A worker that counts as dead holds the run's lock until the kernel is through with all of its threads: the next
    # meshmend that looks may be too early, and the one after it cleans up.
    wait_for(lambda: job.name in clean_stale() or job.name not in {folder.name for folder in runs()})


def test_a_killed_launcher_can_be_replaced(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=120", "pause=0.01"]
    job.start("-n", "3", script=[SCRIPT, *options, "gate=60"]).until("step 30 ")
    workers = [one.worker for one in members(job.name)]
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
def test_a_run_has_one_launcher(job: Job, tmp_path: Path) -> None:
    job.start("-n", "2", script=[SCRIPT, "steps=20", "gate=10"]).until("step 3 ")
    assert job.process is not None
    for how in ("--attach", "--resume"):
        other = Job(tmp_path, job.name).start(how, job.name, script=[], name=False).finish()
        assert other.status == 2 and one_line(other, f"process {job.process.pid}"), other.output
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output


def test_everything_dies_and_is_resumed(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=60", "pause=0.02"]
    job.start("--checkpoint-every", "10", "-n", "2", script=[SCRIPT, *options, "gate=40"]).until("step 25 ")
    victims = [one.worker for one in members(job.name)]
    assert job.process is not None
    job.process.kill()
    for worker in victims:
        os.kill(worker, signal.SIGKILL)
    job.output += job.process.communicate()[0]
    wait_for(lambda: not any(is_alive(worker) for worker in victims))
    job.open_gate()
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert [event.epoch.attempt for event in read(job.path) if isinstance(event, Began)] == [0, 1]
    assert "from step-000000" in job.output
    assert job.weights == [undisturbed(*options)] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_too_few_are_left(job: Job, undisturbed: Undisturbed) -> None:
    options = ["steps=40"]
    job.faults = [kill(1, 10), kill(2, 20)]
    job.start(*SHRINK, "-n", "2:3", script=[SCRIPT, *options, "gate=30"])
    job.until(sentence(Halting(TooFew(1, 2), checkpoint=True))).open_gate()
    job.finish()
    assert job.status == 75, job.output
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
    assert [event.epoch.attempt for event in read(job.path) if isinstance(event, Began)] == [0, 1]
    assert "step-00000020" in job.output
    assert job.weights == [undisturbed(*options)] * 2, job.output
    job.assert_clean()


def test_an_exception_is_told_once(job: Job) -> None:
    job.run("-n", "3", script=[SCRIPT, "wrong=5"])
    assert job.status == 1, job.output
    assert job.output.count("ValueError: this data is wrong in step 5") == 1, job.output
    raised = [event for event in read(job.path) if isinstance(event, Raised)]
    assert {event.rank for event in raised} == {0, 1, 2} and {event.step for event in raised} == {5}
    (trace,) = re.findall(r"step 5:\n(.*?)\nmeshmend:", job.output, re.DOTALL)
    assert "in gradient" in trace and "/meshmend/" not in trace
    assert len(re.findall(r"meshmend: worker \d .*step 5$", job.output, re.MULTILINE)) == 2, job.output
    job.assert_clean()


@pytest.mark.parametrize("reduction", ["exact", "float"])
def test_a_step_that_is_not_finite(job: Job, reduction: str) -> None:
    job.run("-n", "2", script=[SCRIPT, "bad=5", f"reduction={reduction}", "nonfinite=error"])
    assert job.status == 1, job.output
    assert one_line(job, "step 5", "'0.w'", "NaN")
    assert job.output.count("NaN") == 1


def test_a_step_that_is_skipped(job: Job, undisturbed: Undisturbed) -> None:
    options = ["bad=5", "nonfinite=skip"]
    job.faults = [kill(1, 5)]
    job.run(*SHRINK, "-n", "2", script=[SCRIPT, *options])
    assert job.status == 0, job.output
    assert {event.step for event in read(job.path) if isinstance(event, Skipped)} == {5}
    assert job.weights == [undisturbed(*options)], job.output
    job.assert_clean()


@pytest.mark.parametrize(
    ("words", "script", "values"),
    [
        (["-n", "0"], [SCRIPT], ["0 workers"]),
        (["-n", "two"], [SCRIPT], ["'two'", "--workers"]),
        (["-n", "2"], [], ["no script"]),
        (["-n", "2"], ["nowhere.py"], ["'nowhere.py'"]),
        (["--on-failure", "spare"], [SCRIPT], ["--spares"]),
        (["--min-workers", "3", "-n", "2"], [SCRIPT], ["--min-workers 3", "2 workers"]),
        (["--hosts", "a:0"], [SCRIPT], ["'a:0'", "--hosts"]),
        (["-n", "2", "--checkpoint-every", "often"], [SCRIPT], ["'often'"]),
        (["-n", "17"], [SCRIPT], ["16 lanes", "17 workers"]),
        (["-n", "2"], [SCRIPT, "reduction=odd"], ["reduction='odd'"]),
        (["-n", "2"], [SCRIPT, "wire=bf16"], ["wire='bf16'", "reduction='exact'"]),
        (["-n", "3"], [SCRIPT, "odd=1"], ["worker 1", "gradients"]),
    ],
)
def test_mistakes_are_one_sentence(job: Job, words: list[str], script: Sequence[object], values: list[str]) -> None:
    job.run(*words, script=script)
    assert job.status == 2, job.output
    assert one_line(job, *values), job.output
    assert "Traceback" not in job.output


def test_a_name_is_used_once(job: Job) -> None:
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    assert job.status == 0, job.output
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    assert (job.status, f"{job.path} " in job.output, f"--resume {job.name}" in job.output) == (2, True, True)


def test_a_run_of_the_same_name_in_another_folder_is_left_alone(
    job: Job, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    options = ["steps=120", "pause=0.01"]
    job.start("-n", "2", script=[SCRIPT, *options, "gate=60"]).until("step 20 ")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = Job(elsewhere, job.name).run("-n", "2")
    assert other.status == 2 and other.output.count("\n") == 1, other.output
    assert job.process is not None
    assert repr(job.name) in other.output and f"process {job.process.pid}" in other.output
    assert not other.path.exists()
    job.open_gate()
    job.finish()
    assert (job.status, job.weights) == (0, [undisturbed(*options)] * 2), job.output
    job.assert_clean()


def test_what_a_dead_run_of_the_same_name_has_left_is_no_hindrance(job: Job) -> None:
    """Its worker's number is another process's by now."""
    create_as_agent(job.name, 0).agent.worker = replace(Identity.of(os.getpid()), born=1)
    os.close(presence._present.pop(folder_of(job.name)))  # as if this process were dead
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    assert job.status == 0, job.output
    job.assert_clean()


def test_workers_that_wait_for_a_launcher_are_not_overrun(job: Job) -> None:
    """Neither by another run of that name nor by --resume, which would drop what they know."""
    job.run("-n", "1", script=[SCRIPT, "steps=2"])
    create_as_agent(job.name, 0).agent.worker = Identity.of(os.getpid())
    job.output = ""
    job.start("--resume", job.name, script=[SCRIPT, "steps=3"], name=False).finish()
    assert job.status == 2 and one_line(job, str(os.getpid()), f"--attach {job.name}"), job.output
    elsewhere = job.folder / "elsewhere"
    elsewhere.mkdir()
    other = Job(elsewhere, job.name).run("-n", "1")
    leave(job.name)
    assert other.status == 2 and one_line(other, str(os.getpid()), f"--attach {job.name}"), other.output


def test_a_name_that_another_user_has_taken_in_shared_memory_is_no_hindrance(job: Job) -> None:
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root, to act as another user in a /dev/shm of its own")
    plant = f"import os; os.setuid(65534); os.mkdir('/dev/shm/meshmend-{os.geteuid()}', 0o777)"
    inside = (
        f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm && {shlex.join([sys.executable, '-S', '-c', plant])} || exit 9"
    )
    after = '"$@"; s=$?; ls -A /dev/shm/*; exit $s'
    job.on = lambda *words: ["unshare", "-m", "sh", "-c", f"{inside}; {after}", "sh", *words]
    job.run("-n", "2", script=[SCRIPT, "steps=2"])
    assert job.status == 0 and "Traceback" not in job.output and "control" not in job.output, job.output


@pytest.mark.jobs
def test_one_that_is_stopped_while_it_should_give_its_state_is_found(job: Job, undisturbed: Undisturbed) -> None:
    job.faults = [kill(2, 6), kill(0, 6, "state", "hang")]
    job.run("--on-failure", "spare", "-n", "3", "--spares", "2")
    assert job.status == 0, job.output
    assert (0, How.HANG, 0) in deaths(job)
    assert job.weights == [undisturbed()] * 3, job.output
    job.assert_clean()
