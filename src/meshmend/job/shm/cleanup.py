"""Which runs have shared memory on this host, and removing what dead ones left."""

from __future__ import annotations

import contextlib
import re
import shutil
import time

from meshmend.base.clocks import LEFTOVER
from meshmend.base.processes import is_alive
from meshmend.errors import JobError
from meshmend.job.shm import files
from meshmend.job.shm.segment import open_to_read


def ranks_of(run: str) -> list[int]:
    """The ranks of a run that have memory on this host."""
    found = (path.stem.removeprefix(f"meshmend-{run}-") for path in files.HOME.glob(f"meshmend-{run}-*.control"))
    return sorted(int(rank) for rank in found if rank.isdigit())  # and not those of run "a-b" for run "a"


def stale_runs() -> list[str]:
    """Runs that left something behind although their agents and all their workers are dead."""
    alive: dict[str, bool] = {}
    for path in files.HOME.glob("meshmend-*.control"):
        run, _, rank = path.stem.removeprefix("meshmend-").rpartition("-")
        try:
            agent = open_to_read(run, int(rank)).agent
            here = is_alive(agent.owner) or is_alive(agent.worker, agent.worker_born)
        except (JobError, ValueError, OSError):
            here = True  # it is being removed, or belongs to another user or another version: leave it alone
        alive[run] = alive.get(run, False) or here
    return sorted(run for run, here in {**_orphans(), **alive}.items() if not here)


def _orphans() -> dict[str, bool]:
    """Runs of which only a folder for Open MPI is left, and whether it is so young that the run may just begin."""
    found = {}
    for path in files.HOME.glob("meshmend-*-mpi"):
        with contextlib.suppress(OSError):
            found[path.name.removeprefix("meshmend-").removesuffix("-mpi")] = (
                time.time() - path.stat().st_mtime < LEFTOVER
            )
    return found


def clean_stale() -> list[str]:
    """Remove what dead runs left behind; their names."""
    stale = stale_runs()
    for run in stale:
        remove_run(run)
    return stale


def remove_run(run: str) -> bool:
    """Remove all that a run has in shared memory on this host; whether there was anything."""
    ours = re.compile(rf"meshmend-{re.escape(run)}-(mpi|\d+\..*)")  # and not run "a-b" for run "a"
    found = [path for path in files.HOME.glob(f"meshmend-{run}-*") if ours.fullmatch(path.name)]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return bool(found)
