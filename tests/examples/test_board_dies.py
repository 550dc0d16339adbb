"""The examples run, and show what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def losses(*words: str) -> tuple[list[int], list[float], str]:
    """Chips and loss of each step, and what was said of the incident."""
    command = [sys.executable, str(ROOT / "examples" / "board_dies.py"), *words]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    steps = re.findall(r"step +\d+  chips +(\d+)  loss ([\d.]+)", ran.stdout)
    return [int(chips) for chips, _ in steps], [float(loss) for _, loss in steps], ran.stdout


@pytest.mark.parametrize(
    ("devices", "mesh", "hole", "left"),
    [
        (16, "4x4", "2x2@0,2", 12),
        pytest.param(64, "8x8", "4x2@2,2", 56, marks=pytest.mark.jobs),
    ],
)
def test_a_board_dies_and_the_loss_goes_on(devices: int, mesh: str, hole: str, left: int) -> None:
    words = ["--cpu-devices", str(devices), "--mesh", mesh, "--fail", hole, "--steps", "8", "--at-step"]
    chips, loss, told = losses(*words, "4")
    assert chips == [devices] * 4 + [left] * 4
    _, undisturbed, silent = losses(*words[2:], "8")  # on a machine without accelerators, nothing has to be asked for
    assert loss == pytest.approx(undisturbed, abs=1e-5)
    assert loss[-1] < 0.9 * loss[0]
    number = r"([\d.]+) s"
    said = (
        rf"incident: (\d+) of (\d+) chips died; next step after {number}: plan {number}, compile {number}, run {number}"
    )
    [incident] = re.findall(said, told)
    assert incident[:2] == (str(devices - left), str(devices))
    whole, *parts = map(float, incident[2:])
    assert 0 < sum(parts) < whole + 0.01 and "incident" not in silent
