"""Queries other programs with a deadline, so that none of them can crash the doctor or block it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from importlib import metadata

from meshmend.base.clocks import DOCTOR_CHILD
from meshmend.base.units import duration_text
from meshmend.errors import JobError
from meshmend.run.world.mpirun import mpirun


def child(command: list[str], **environment: str) -> tuple[int, str, str]:
    """Return status, stdout and stderr; at the deadline, kill the whole process group, or its pipes would stay open."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **environment}, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, wrong = process.communicate(timeout=DOCTOR_CHILD)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, wrong = process.communicate()
        return 1, out, f"no answer within {duration_text(DOCTOR_CHILD)}"
    return process.returncode, out, wrong


def last(text: str) -> str:
    """Return the last line that is not blank: of a traceback, the error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")


def found() -> str | None:
    """Return the mpirun that a run would use, if there is one."""
    with contextlib.suppress(JobError):
        return mpirun()
    return None


def version_of(path: str) -> str | None:
    """Return the version of Open MPI that an mpirun belongs to; None if it belongs to another MPI."""
    match = re.search(r"Open MPI\)?\s+v?(\d[\w.]*)", child([path, "--version"])[1])
    return match[1] if match else None


def installed(package: str) -> str | None:
    """Return the version of a package without importing it."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None
