"""The button that kills a worker, for `meshmend watch --allow-chaos`: the same as one strike of `meshmend chaos`."""

from __future__ import annotations

from pathlib import Path

from meshmend.errors import JobError
from meshmend.job.faults import KINDS, Target
from meshmend.job.shm.inspect import members
from meshmend.telemetry import Log, Struck

KILL = KINDS["kill"]


def kill(run: str, folder: Path, rank: int) -> str:
    """Kill a worker of a run on this host, and return what was done; refuse what the run could not survive."""
    active = [one for one in members(run) if one.active and one.alive]
    victim = next((one for one in active if one.rank == rank), None)
    if victim is None:
        raise JobError(f"worker {rank} is not training on this host: this page can kill only workers of its own host")
    if len(active) < KILL.members:
        raise JobError(f"worker {rank} is the last one on this host that has the state: killing it could end the run")
    Log(folder, "page").write(
        Struck(epoch=victim.epoch, what=KILL.part, fault=KILL.name, rank=rank, process=victim.worker, step=victim.step)
    )
    assert KILL.outside is not None, "chaos has this kind"
    KILL.outside(Target(run, rank, victim.worker, victim.courier, victim.mpirun, victim.agent, victim.agent))
    return f"killed worker {rank} (process {victim.worker}) in step {victim.step}"
