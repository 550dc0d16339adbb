"""Checks before a run starts that need files or a plan: each mistake is one sentence."""

from __future__ import annotations

import os
import re

from meshmend.errors import JobError
from meshmend.mesh import Mesh
from meshmend.mesh.choose import plan
from meshmend.run.spec import RunSpec


def check(spec: RunSpec) -> None:
    """Refuse a script that cannot be run, and a mesh that sums cannot go over."""
    check_script(spec.script[0])
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


def check_mesh(spec: RunSpec) -> None:
    """Refuse a mesh that does not have one live chip per worker, or for which this algorithm has no plan."""
    mesh = Mesh.parse(spec.mesh)
    mesh.require_connected()
    chips = len(mesh.live)
    if chips != spec.workers:
        raise JobError(f"--mesh {mesh} has {chips} live chips, for {spec.workers} workers: give -n {chips}")
    plan(mesh, algorithm=spec.algorithm)
