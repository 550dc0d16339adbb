"""Sharded updates as whole jobs: workers killed in every phase, replaced, and their couriers with mpirun.

Whoever dies, the weights are those of the unsharded loop, bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import meshmend as mm
from meshmend.base.status import HALTED
from meshmend.job.shm.inspect import members
from tests.jobs.jobs import DEADLINE, Job

SCRIPT = Path(__file__).with_name("shared_updates.py")
JAX = Path(__file__).with_name("shared_updates_jax.py")
PHASES = ["compute", "allreduce", "meet", "update", "compare", "give", "commit"]


@cache
def unsharded(*options: str) -> str:
    """The weights of the loop without sharding, alone."""
    command = [sys.executable, str(SCRIPT), "plain=1", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    return done.stdout.split("weights ")[1].split()[0]


def assert_as_unsharded(job: Job, workers: int, *options: str) -> None:
    assert job.status == 0, job.output
    assert job.weights == [unsharded(*options)] * workers, job.output
    job.assert_clean()


def test_a_kill_after_the_meeting_changes_no_bit(job: Job) -> None:
    """The update is made on all that are left, and a buddy gives out what the dead one's slices have become."""
    job.faults = [mm.testing.Fault(rank=1, step=5, point="update")]
    job.run("-n", "3", "--on-failure", "shrink", script=[SCRIPT, "steps=10"])
    assert_as_unsharded(job, 2, "steps=10")


@pytest.mark.jobs
@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_in_every_phase_changes_no_bit(job: Job, phase: str) -> None:
    job.faults = [mm.testing.Fault(rank=1, step=5, point=phase)]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT, "grow=1"])
    assert_as_unsharded(job, 3, "grow=1")


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("lamb", "measure"),
        ("lamb", "update"),
        ("lars", "measure"),
        ("clipped", "give"),
        ("clipped", "meet"),
        ("rows", "update"),
    ],
)
def test_norms_of_whole_tensors_have_the_same_bits_through_a_kill(job: Job, name: str, phase: str) -> None:
    """The dead one's slices are measured by their buddies, also where it has updated some of its own."""
    job.faults = [mm.testing.Fault(rank=1, step=5, point=phase)]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT, f"optimizer={name}", "steps=12"])
    assert_as_unsharded(job, 3, f"optimizer={name}", "steps=12")


@pytest.mark.jobs
@pytest.mark.parametrize(("phase", "kind"), [("give", "kill"), ("meet", "courier"), ("commit", "flip")])
def test_a_replacement_takes_weights_from_one_and_slices_from_several(job: Job, phase: str, kind: str) -> None:
    job.faults = [mm.testing.Fault(rank=2, step=5, point=phase, kind=kind)]
    job.run("-n", "4", script=[SCRIPT, "crowd=4", "steps=100000", "pause=0.005"])
    assert job.status == 0, job.output
    steps = job.output.split("weights ")[1].split(" after ")[1].split()[0]
    assert job.weights == [unsharded(f"steps={steps}")] * 4, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_copies_of_slices_wait_for_room(job: Job) -> None:
    """A full memory once ended the thread that writes them, and all workers waited for ever."""
    job.faults = [mm.testing.Fault(rank=1, step=5)]
    job.run("-n", "3", "--on-failure", "shrink", script=[SCRIPT, "steps=12", "full=2"])
    assert_as_unsharded(job, 2, "steps=12")


@pytest.mark.jobs
def test_of_two_workers_the_one_whose_weights_changed_is_known(job: Job) -> None:
    """Two states that differ have no majority; but the holders of each slice have agreed on its digest."""
    job.faults = [mm.testing.Fault(rank=0, step=5, point="commit", kind="flip")]
    job.run("-n", "2", "--on-failure", "shrink", script=[SCRIPT])
    assert "slice 0 of worker 0 changed" in job.output
    assert_as_unsharded(job, 1)


@pytest.mark.jobs
def test_two_die_one_after_the_other_and_a_spare_holds_slices(job: Job) -> None:
    job.faults = [
        mm.testing.Fault(rank=1, step=4, point="meet"),
        mm.testing.Fault(rank=0, step=14, point="give"),
    ]
    job.run("-n", "3", "--spares", "1", "--on-failure", "spare", script=[SCRIPT, "pause=0.05"])
    assert_as_unsharded(job, 2)


@pytest.mark.jobs
@pytest.mark.parametrize("phase", ["allreduce", "update"])
def test_with_float_sums_all_have_the_same_weights_through_a_kill(job: Job, phase: str) -> None:
    """Their last bits depend on who computed what, so they are compared with each other; the audit is as strict."""
    job.faults = [mm.testing.Fault(rank=1, step=5, point=phase)]
    job.run("-n", "3", "--on-failure", "shrink", script=[SCRIPT, "reduction=float", "steps=12"])
    assert job.status == 0 and len(job.weights) == 2 and len(set(job.weights)) == 1, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_mpirun_dies_and_the_workers_live_on_with_their_slices(job: Job) -> None:
    job.start("-n", "4", script=[SCRIPT, "gate=6"]).until("step 0 ")
    (victim,) = {member.daemon for member in members(job.name)}
    os.kill(victim, signal.SIGKILL)
    job.open_gate()
    job.finish()
    assert_as_unsharded(job, 4)


@pytest.mark.jobs
@pytest.mark.parametrize("options", [["say=1"], ["bad=7", "nonfinite=skip"], ["buddies=2"], ["buddies=0"]])
def test_rounds_of_other_kinds_leave_slices_as_they_are(job: Job, options: list[str]) -> None:
    if options != ["buddies=0"]:
        job.faults = [mm.testing.Fault(rank=2, step=6, point="allreduce")]
    job.run("-n", "3", "--on-failure", "shrink", script=[SCRIPT, *options])
    assert_as_unsharded(job, 3 - len(job.faults), *(word for word in options if not word.startswith("buddies")))


@pytest.mark.jobs
def test_a_slice_whose_holders_are_all_dead_is_told_in_one_sentence(job: Job) -> None:
    job.faults = [mm.testing.Fault(rank=rank, step=5, point="compute") for rank in (1, 2, 3)]
    job.run("-n", "4", "--on-failure", "shrink", script=[SCRIPT])
    assert job.status == 1, job.output
    said = [line for line in job.output.splitlines() if "all workers that held slice" in line]
    assert len(said) == 1 and "last checkpoint" in said[0], job.output


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (["-n", "2"], ["buddies=2"], "buddies=2 needs at least 3 workers"),
        pytest.param(["-n", "4", "--mesh", "2x2"], [], "do not work with --mesh yet (2x2)", marks=pytest.mark.jobs),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(job: Job, words: list[str], options: list[str], said: str) -> None:
    job.run(*words, script=[SCRIPT, *options])
    assert job.status == 2, job.output
    assert sum(said in line for line in job.output.splitlines()) == 1 and "Traceback" not in job.output, job.output


@pytest.mark.jobs
@pytest.mark.parametrize("workers", [3, 5])
def test_a_run_that_was_stopped_is_resumed_with_any_number_of_workers(job: Job, workers: int) -> None:
    """All have written the slices of one step, though they hear at different moments that they have to stop."""
    options = ["steps=60", "pause=0.05"]
    job.start("-n", "4", script=[SCRIPT, *options]).until("step 0 ")
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.finish()
    assert job.status == HALTED and not job.weights, job.output
    saved = mm.load_checkpoint(job.path)
    assert {name: value.shape for name, value in saved.items()} == {"w": (9000,), "b": (3,), "u": (2500,)}
    job.start("--resume", job.name, "-n", str(workers), script=(), name=False).finish()
    assert "resuming from step-" in job.output
    assert_as_unsharded(job, workers, "steps=60")


@pytest.mark.jobs
def test_after_everybody_was_killed_the_last_checkpoint_of_all_slices_is_resumed(job: Job) -> None:
    job.faults = [mm.testing.Fault(rank=rank, step=17, point="compute") for rank in range(3)]
    job.run("-n", "3", "--checkpoint-every", "5", script=[SCRIPT])
    assert job.status == 1, job.output
    job.faults = []
    job.start("--resume", job.name, "-n", "2", script=(), name=False).finish()
    assert "resuming from step-000000" in job.output and "the beginning" not in job.output, job.output
    assert_as_unsharded(job, 2)
    left = sorted(path.name for path in (job.path / "checkpoints").iterdir())
    assert len([name for name in left if name.startswith("step-")]) == 2, left
    assert len([name for name in left if name.startswith("slices-")]) == 2, left


@pytest.mark.jobs
def test_the_last_step_of_a_checkpoint_is_in_the_ledger_though_all_die_before_the_next(job: Job) -> None:
    job.faults = [mm.testing.Fault(rank=rank, step=6, point="compute") for rank in range(2)]
    job.run("-n", "2", "--checkpoint-every", "1", script=[SCRIPT, "steps=9", "pause=0.5"])
    assert job.status == 1, job.output
    job.faults = []
    job.start("--resume", job.name, script=(), name=False).finish()
    assert "resuming from step-00000006" in job.output, job.output
    assert_as_unsharded(job, 2, "steps=9")


@pytest.mark.jobs
def test_where_all_raise_the_same_the_last_state_is_saved(job: Job) -> None:
    job.run("-n", "3", script=[SCRIPT, "wrong=9"])
    assert job.status == 1, job.output
    saved = mm.load_checkpoint(job.path)
    digest = hashlib.sha256(b"".join(saved[name].tobytes() for name in sorted(saved))).hexdigest()
    assert digest == unsharded("steps=9"), job.output


@pytest.mark.jobs
def test_the_launcher_dies_and_another_attaches(job: Job) -> None:
    options = ["steps=60", "pause=0.05"]
    job.start("-n", "3", "--log-every", "0", script=[SCRIPT, *options]).until("step 5 ")
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    job.start("--attach", job.name, script=(), name=False).finish()
    assert_as_unsharded(job, 3, "steps=60")


@pytest.mark.jobs
def test_a_checkpoint_with_a_name_is_kept(job: Job) -> None:
    job.run("-n", "2", script=[SCRIPT, "best=4", "steps=8"])
    assert job.status == 0, job.output
    best = mm.load_checkpoint(job.path, "best")
    digest = hashlib.sha256(b"".join(best[name].tobytes() for name in sorted(best))).hexdigest()
    assert digest == unsharded("steps=5")


@pytest.mark.jobs
def test_a_transformation_of_optax_is_sharded_with_the_same_bits_for_any_number_of_workers(job: Job) -> None:
    command = [sys.executable, str(JAX)]
    alone = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE, cwd=job.folder)
    job.faults = [mm.testing.Fault(rank=1, step=5, point="give")]
    job.run("-n", "3", "--on-failure", "shrink", script=[JAX])
    assert job.status == 0, job.output
    assert job.weights == [alone.stdout.split("weights ")[1].split()[0]] * 2, job.output
    job.assert_clean()


@pytest.mark.jobs
def test_random_failures_change_no_bit(job: Job) -> None:
    """With two buddies, since failures may come before those of the one before have been filled."""
    options = ["steps=400", "pause=0.02", "buddies=2"]
    job.start("-n", "4", "--log-every", "0", script=[SCRIPT, *options]).until("step 20 ")
    words = ["--every", "0.5", "--count", "8", "--kinds", "kill,courier,mpirun,flip", "--seed", "3", job.name]
    command = [sys.executable, "-m", "meshmend", "chaos", *words]
    ran = subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 0, ran.stderr
    job.finish()
    assert job.status == 0, job.output
    assert set(job.weights) == {unsharded("steps=400")}, job.output
    job.assert_clean()
