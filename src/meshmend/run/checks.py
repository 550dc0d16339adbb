"""Checks before a run starts that need files or a plan: each mistake is one sentence."""

from __future__ import annotations

import os
import re
import resource

from meshmend.errors import JobError
from meshmend.mesh import read_mesh
from meshmend.mesh.choose import plan
from meshmend.run.spec import RunSpec

FILES = 64
"""Open files without which not even mpirun starts."""
LARGEST = 32 << 20
"""Bytes of the largest file that a run of any size writes: Open MPI's shared memory has half of that."""


def check(spec: RunSpec) -> None:
    """Refuse a script that cannot be run, limits that no run keeps to, and a mesh that sums cannot go over."""
    check_script(spec.script[0])
    check_limits()
    if spec.mesh:
        check_mesh(spec)


def check_script(script: str) -> None:
    """Refuse a script that does not exist, or is none."""
    if re.fullmatch(r"python[\d.]*", os.path.basename(script)):
        raise JobError(f"{script!r} is not a script: leave it out; meshmend run -n 4 train.py starts Python itself")
    if not os.path.exists(script):
        raise JobError(f"there is no script {script!r}: give the path of one, such as train.py")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise JobError(f"{script!r} is a folder without a __main__.py: give a script, such as train.py")


def check_limits() -> None:
    """Refuse limits of this shell with which Open MPI or a worker would fail later, in words of their own."""
    for limit, least, what, option in (
        (resource.RLIMIT_NOFILE, FILES, "open files", f"-n {16 * FILES}"),
        (resource.RLIMIT_FSIZE, LARGEST, "bytes in a file", "-f unlimited"),
    ):
        found = resource.getrlimit(limit)[0]
        if found != resource.RLIM_INFINITY and found < least:
            raise JobError(
                f"this shell allows {found:,} {what}, but a run needs {least:,} or more: raise it with ulimit {option}"
            )


def check_mesh(spec: RunSpec) -> None:
    """Refuse a mesh that does not have one live chip per worker, or for which this algorithm has no plan."""
    mesh = read_mesh(spec.mesh)
    mesh.require_connected()
    chips = len(mesh.live)
    if chips != spec.workers:
        raise JobError(f"--mesh {mesh} has {chips} live chips, for {spec.workers} workers: give -n {chips}")
    plan(mesh, algorithm=spec.algorithm)
