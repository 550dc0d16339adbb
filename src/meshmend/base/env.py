"""Every environment variable that meshmend reads. The launcher sets most of them for its workers and couriers.

| variable | set by | meaning |
|---|---|---|
| MESHMEND_RUN | launcher | the name of the run |
| MESHMEND_RANK | launcher | the rank of the worker: its stable number in the run, from 0 |
| MESHMEND_FOLDER | launcher | where the run keeps its files on this host |
| MESHMEND_ATTEMPT | launcher | how often the run has been resumed from a checkpoint |
| MESHMEND_RESUME | launcher | the checkpoint to start from |
| MESHMEND_PASSED | launcher | how many jobs of the script are already over |
| MESHMEND_EVERY | launcher | how often to write a checkpoint: "60s", "5min", "100" (steps) or "auto" |
| MESHMEND_LOG_EVERY | user, launcher | how often a step is printed: "1s" (the default), "0" (every step) or "never" |
| MESHMEND_STATE | user | where states and gradients are: "device" or "host"; "device" for accelerators and if sharded |
| MESHMEND_CHIP | `meshmend testbed` | the row,col of the chip that the process runs on |
| MESHMEND_RUNS | user | the folder that holds all run folders; `runs` in the working directory by default |
| MESHMEND_LINKS | user, testbed | the network devices that lead north, east, south and west from this chip: "n,e,s,w" |
| MESHMEND_DEVICE_MEMORY | user | where workers of one host sum: on their devices by default, or "off", "cuda:0" |
| MESHMEND_FAULTS | `mm.testing` | faults to inject, as JSON |
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from meshmend.errors import JobError

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""What workers get unless the user's environment says otherwise: numerical libraries would start a thread per core in
every worker, and with more threads than cores a step takes many times as long. It is not a share of the cores, since
the last bits of a lane may depend on it, and a lane must be the same on every host and with any number of workers.
"""

NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""What a courier sets for itself before numpy is loaded, whatever the user's environment says: it multiplies no
matrices. OpenBLAS would start a thread per core, and each of them spins for a moment before it sleeps, which takes
0.1 s of processor time per start.
"""

_worker: tuple[int, Settings] | None = None
"""The process that is a worker, and its settings. Children inherit variables and memory, but are not workers."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A worker's place in its run."""

    run: str
    rank: int
    folder: Path
    attempt: int = 0
    resume: str = ""
    passed: int = 0
    every: str = ""
    log_every: str = ""

    @classmethod
    def here(cls) -> Settings | None:
        """The settings of this worker; None outside `meshmend run`, and in children of a worker."""
        return _worker[1] if _worker is not None and _worker[0] == os.getpid() else None

    @classmethod
    def begin(cls) -> Settings:
        """Read what the agent told this process, which is a worker from now on."""
        global _worker
        found = os.environ
        settings = cls(
            run=found["MESHMEND_RUN"],
            rank=int(found["MESHMEND_RANK"]),
            folder=Path(found["MESHMEND_FOLDER"]),
            attempt=int(found.get("MESHMEND_ATTEMPT", "0")),
            resume=found.get("MESHMEND_RESUME", ""),
            passed=int(found.get("MESHMEND_PASSED", "0")),
            every=found.get("MESHMEND_EVERY", ""),
            log_every=log_every(),
        )
        _worker = os.getpid(), settings
        return settings

    def environment(self) -> dict[str, str]:
        """The variables that `begin` reads."""
        return {
            "MESHMEND_RUN": self.run,
            "MESHMEND_RANK": str(self.rank),
            "MESHMEND_FOLDER": str(self.folder),
            "MESHMEND_ATTEMPT": str(self.attempt),
            "MESHMEND_RESUME": self.resume,
            "MESHMEND_PASSED": str(self.passed),
            "MESHMEND_EVERY": self.every,
            "MESHMEND_LOG_EVERY": self.log_every,
        }


def log_every() -> str:
    """Return how often a step is printed, if the user or the launcher has said so."""
    return os.environ.get("MESHMEND_LOG_EVERY", "")


def device_memory() -> str:
    """Return where workers of one host sum, if the user has said so."""
    return os.environ.get("MESHMEND_DEVICE_MEMORY", "")


def state_place() -> str:
    """Return where states are kept, if the user has said so: "device" or "host"."""
    found = os.environ.get("MESHMEND_STATE", "")
    if found not in ("", "device", "host"):
        raise JobError(f"MESHMEND_STATE is {found!r}; set it to device or host, or leave it out")
    return found
