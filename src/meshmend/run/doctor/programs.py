"""Asks other programs what they are, with a deadline: none of them can take the doctor down or hold it up."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from importlib import metadata

from meshmend.errors import JobError
from meshmend.run.world.mpirun import mpirun

SLOW = 60.0
"""Seconds a child process may take; JAX may look for accelerators for a long time."""


def child(command: list[str], **environment: str) -> tuple[int, str, str]:
    """Status, output and errors; at the deadline the whole process group goes, or its pipes would keep us waiting."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **environment}, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, wrong = process.communicate(timeout=SLOW)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, wrong = process.communicate()
        return 1, out, f"nothing came back in {SLOW:g} s"
    return process.returncode, out, wrong


def last(text: str) -> str:
    """The last line with something on it: of a traceback, the error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def found() -> str | None:
    """The mpirun that a run would use, if there is one."""
    with contextlib.suppress(JobError):
        return mpirun()
    return None


def version_of(path: str) -> str | None:
    """The version of Open MPI that an mpirun belongs to; None if it is another MPI's."""
    match = re.search(r"Open MPI\)?\s+v?(\d[\w.]*)", child([path, "--version"])[1])
    return match[1] if match else None


def installed(package: str) -> str | None:
    """The version of a package, without importing it."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None
