"""When a checkpoint is written and what is in it: the first worker of a run writes them in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from meshmend.base.clocks import HALT_ROOM, ROOM_POLL
from meshmend.base.env import Settings
from meshmend.base.schema import Range, Real, reader
from meshmend.base.units import plural
from meshmend.errors import FormatError, JobError
from meshmend.job.checkpoints.folders import folder_of
from meshmend.job.checkpoints.interval import CheckpointInterval
from meshmend.job.frameworks.base import Framework
from meshmend.job.ledger import StepLedger
from meshmend.job.state.safetensors import Background, about_of, latest, load, malformed, path_of, save
from meshmend.telemetry import NO_ROOM, Saved

T = TypeVar("T")
DIVERGED = "diverged"
"""In the last checkpoint of a job that a sum ended which was not finite: why, and what to do."""
METRICS = reader(dict[str, Real])
"""Checks the numbers that a checkpoint was saved with."""
GRID = reader(list[Annotated[int, Range(-(1 << 15), (1 << 15) - 1)]])
"""Checks the levels of a grid of exact sums."""
GRIDS = reader(list[list[Annotated[int, Range(-(1 << 15), (1 << 15) - 1)]]])
"""The same for those of further sums of a step."""


class Checkpoints:
    """A worker's checkpoints: the state is in its memory, so a step waits only for a snapshot of it."""

    def __init__(self, settings: Settings | None, ledger: StepLedger, job: int = 1) -> None:
        self._folder = folder_of(settings.folder if settings is not None else Path(), job)
        self._pace = CheckpointInterval(settings.every if settings is not None else "")
        self._background = Background(self._folder, said=self._said)
        self._ledger = ledger
        self._failed = False
        """The last checkpoint could not be written, and a message said so."""

    def offer(self, framework: Framework, step: int, about: Callable[[], dict[str, Any]]) -> None:
        """The state before this step: write it in the background if a checkpoint is due."""
        if self._pace.due(step) and self._background.offer(framework.snapshot, step, about()):
            self._pace.began(step)

    def now(self, framework: Framework, step: int, about: dict[str, Any], name: str = "") -> bool:
        """Write a checkpoint before this worker continues or exits; return whether that succeeded.

        On a full disk it waits for room, since this state is saved nowhere else; stopping the run a second time ends
        the wait. What else may pass, such as a quota, is waited for no longer than a halted run may take.
        """
        self._background.close()
        if not name and DIVERGED not in about and path_of(self._folder, step).exists():
            return True
        began = time.monotonic()
        path = self.patiently(lambda: save(self._folder, framework.leaves(), step=step, about=about, name=name))
        if path is None:
            return False
        self._said(path, time.monotonic() - began, path.stat().st_size, step)
        print(f"checkpoint {name + ' ' if name else ''}of {plural(step, 'step')} written", flush=True)
        return True

    def patiently(self, write: Callable[[], T], what: str = "a checkpoint") -> T | None:
        """Write something of a checkpoint, once it can be written; None if it cannot."""
        waiting = False
        with self._ledger.waits() as go_on:
            while True:
                try:
                    return write()
                except OSError as error:
                    if error.errno not in NO_ROOM or not go_on(error, HALT_ROOM):
                        print(f"cannot write {what} ({error})", flush=True)
                        return None
                    if not waiting:
                        print(f"cannot write a checkpoint yet ({error}); waiting until there is room", flush=True)
                    waiting = True
                    time.sleep(ROOM_POLL)

    def close(self) -> None:
        """Wait until the current checkpoint has been written."""
        self._background.close()

    def last(self) -> Path | None:
        """Return the newest intact checkpoint."""
        return latest(self._folder)

    def metrics(self, name: str) -> dict[str, float]:
        """Return the numbers that the checkpoint of this name was saved with; empty if there is no intact one."""
        try:
            path = path_of(self._folder, 0, name)
            return METRICS(about_of(path).get("metrics", {}), "metrics") if path.exists() else {}
        except FormatError:
            return {}

    def load(
        self, path: str | Path, framework: Framework, job: dict[str, Any]
    ) -> tuple[int, list[int], dict[str, Any]]:
        """Adopt a checkpoint: its step, the reduction's state, and what it says about its job.

        A checkpoint of other data or another batch is refused.
        """
        leaves, step, about = load(Path(path), framework.template())
        self.check(path, about, job)
        try:
            grid = GRID(about.get("grid"), "grid")
            GRIDS(about.get("more_grids", []), "more_grids")
        except FormatError as error:
            raise malformed(path, error) from None
        framework.adopt(leaves)
        self._pace.began(step)
        return step, list(grid), about

    def check(self, path: str | Path, about: dict[str, Any], job: dict[str, Any]) -> None:
        """Refuse a checkpoint of another job."""
        for name, value in job.items():
            if about.get(name) != value:
                raise JobError(
                    f"{Path(path).name} was written by a job with {name}={about.get(name)!r}, but this script has "
                    f"{value!r}; resume with the script that wrote it"
                )

    def _said(self, result: Path | Exception, seconds: float, nbytes: int, step: int | None = None) -> None:
        if isinstance(result, Exception):
            if not self._failed:
                print(f"cannot write a checkpoint ({result}); training continues, trying again later", flush=True)
            self._failed = True
            return
        self._failed = False
        self._pace.cost = seconds
        if self._ledger.log is not None:
            step = int(result.stem.rpartition("-")[2]) if step is None else step
            epoch = self._ledger.epoch
            self._ledger.log.write(Saved(epoch=epoch, step=step, path=result.name, seconds=seconds, nbytes=nbytes))
