"""The executor on XLA, on virtual devices: each number of devices is a process of its own (see jax_member.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(devices: int, *words: str, timeout: float = 600) -> str:
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    ran = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("devices", "checks"),
    [
        (8, "sums 2x4 0 4,sums 1x8 0 2,sums 2x2 3 4,sums 1x1 0 1,sums 2x2x2 0 3,cores 2x2 0 6,kernel 2x2 0 3"),
        (8, "collectives 2x4 0,collectives 2x2x2 3"),
        pytest.param(9, "kernel 3x3 0 8", marks=pytest.mark.jobs),
        pytest.param(8, "kernel 2x2x2 0 4,kernel 2x4 0 4", marks=pytest.mark.jobs),
        pytest.param(27, "sums 3x3x3 0 4", marks=pytest.mark.jobs),
        (16, "inside 4x4,compiled_once 4x4,survivors 4x4,refused 4x4,sums 4x4 0 6"),
        pytest.param(64, "sums 8x8 1 2", marks=pytest.mark.jobs),
        pytest.param(64, "sums 8x8 2 7", marks=pytest.mark.jobs),
        pytest.param(16, "sums 4x4 5 30", marks=pytest.mark.jobs),
        pytest.param(256, "sums 16x16 2 3", marks=pytest.mark.jobs),
    ],
)
def test_on_virtual_devices(devices: int, checks: str) -> None:
    calls = checks.split(",")
    lines = run(devices, "-m", "tests.mesh.executors.jax_member", checks).splitlines()
    assert lines == [f"right: {call}" for call in calls]


def test_without_jax_the_message_says_what_to_install() -> None:
    code = "import sys, meshmend\nsys.modules['jax'] = None\ntry: meshmend.jax\nexcept Exception as e: print(e)"
    assert "pip install 'meshmend[jax]'" in run(1, "-c", code)
