"""Every example of a training job runs, learns, and ends the same when a worker dies."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import meshmend as mm
from meshmend.testing import Fault
from tests.jobs.conftest import job as job
from tests.jobs.jobs import Job

FOLDER = Path(__file__).parents[2] / "examples"
SMALL = {
    "digits_jax": ["--steps", "12"],
    "digits_numpy": ["--epochs", "2"],
    "digits_torch": ["--steps", "12"],
    "text_jax": ["--steps", "8", "--characters", "8000", "--width", "16"],
    "text_torch": ["--epochs", "2", "--characters", "10000", "--width", "16", "--layers", "1"],
    "ddp_torch": ["--epochs", "2"],
    "gan_torch": ["--steps", "40"],
    "images_torch": ["--steps", "12", "--images", "120"],
    "trainer_torch": ["--epochs", "2"],
    "transformer_flax": ["--steps", "8", "--layers", "1"],
    "dlrm": ["--steps", "8", "--rows", "3000", "--samples", "4096"],
    "transformer_sharded": ["--steps", "8", "--layers", "1"],
}


QUICK = ("digits_numpy", "digits_jax", "text_torch")
"""One of each library and of each data set."""


def script(name: str) -> list[object]:
    return [FOLDER / f"{name}.py", *SMALL[name]]


def alone(name: str, folder: Path, *words: str) -> str:
    command = [sys.executable, *([str(FOLDER / f"{name}.py"), *words] if words else map(str, script(name)))]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300).stdout


def test_all_are_here_and_short() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SMALL, "board_dies"}
    assert all(len(path.read_text().splitlines()) < 130 for path in FOLDER.glob("*.py"))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.jobs) for name in SMALL]
)
def test_it_runs_alone_and_learns(name: str, tmp_path: Path) -> None:
    losses = [float(loss) for loss in re.findall(r"(?:loss|off) (\S+)", alone(name, tmp_path))]
    assert len(losses) >= 8 and losses[-1] < losses[0]


@pytest.mark.jobs
@pytest.mark.parametrize("name", SMALL)
def test_a_death_does_not_change_how_it_ends(name: str, job: Job) -> None:
    job.faults = [Fault(rank=1, step=4)]
    job.run("--on-failure", "shrink", "-n", "3", script=script(name))
    assert job.status == 0, job.output
    last = alone(name, job.folder).splitlines()[-1]
    assert job.output.count(last) == 2, f"{last}\n{job.output}"
    job.assert_clean()


@pytest.mark.jobs
def test_the_next_worker_continues_the_log_of_the_trainer_and_keeps_its_best(job: Job) -> None:
    job.faults = [Fault(rank=0, step=14)]
    job.run("--on-failure", "shrink", "-n", "2", script=[FOLDER / "trainer_torch.py", "--epochs", "3"])
    assert job.status == 0, job.output
    rows = [line.split(",") for line in (job.folder / "trainer.csv").read_text().splitlines()]
    assert [int(epoch) for epoch, *_ in rows] == [0, 1, 2]
    best = mm.load_checkpoint(job.path, "best")
    assert best["model"]["0.weight"].shape == (128, 64)
    job.assert_clean()


def test_the_best_of_the_trainer_is_the_best_of_all_attempts() -> None:
    """A resumed run begins with what the one before it has saved; it stops when that is three epochs old."""
    kept = {"loss": 0.2, "epoch": 4}
    job = SimpleNamespace(
        saved=lambda _: dict(kept), broadcast=lambda value: value, save=lambda _, **numbers: kept.update(numbers)
    )
    trainer = SimpleNamespace(job=job, stop=False)
    best = runpy.run_path(str(FOLDER / "trainer_torch.py"))["Best"](patience=3)
    story = [(0.3, 0.2, False), (0.1, 0.1, False), (0.15, 0.1, False), (0.15, 0.1, False), (0.15, 0.1, True)]
    for epoch, (loss, lowest, stop) in enumerate(story, 5):
        best.epoch_ended(trainer, epoch, {"loss": loss})
        assert kept["loss"] == lowest and trainer.stop == stop


@pytest.mark.jobs
def test_the_trainer_stops_early_in_the_same_epoch_whoever_dies(job: Job) -> None:
    job.faults = [Fault(rank=0, step=30)]
    # A spare joins in the same step; a replacement might not be there before the training has stopped.
    options = ["--on-failure", "spare", "--spares", "1", "-n", "2"]
    job.run(*options, script=[FOLDER / "trainer_torch.py", "--patience", "1"])
    assert job.status == 0, job.output
    rows = [line.split(",") for line in (job.folder / "trainer.csv").read_text().splitlines()]
    losses = [float(loss) for _, _, loss, _ in rows]
    assert [int(epoch) for epoch, *_ in rows] == [*range(len(rows))] and len(rows) < 40
    assert losses[-1] >= losses[-2] == min(losses) and losses[:-1] == sorted(losses[:-1], reverse=True)
    last = alone("trainer_torch", job.folder, "--patience", "1").splitlines()[-1]
    assert job.output.count(last) == 2, job.output
    job.assert_clean()
