"""What a worker saves and when: the first worker of a run writes checkpoints in the background, at a cheap pace."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshmend.base.env import Settings
from meshmend.errors import JobError
from meshmend.job.ledger import StepLedger
from meshmend.job.pace import Pace
from meshmend.job.state.safetensors import Background, load, save
from meshmend.telemetry import Saved

Grid = Callable[[], list[int]]


class Checkpoints:
    """A worker's checkpoints. It has the state at hand, so a snapshot is all that the step waits for."""

    def __init__(self, settings: Settings, diary: StepLedger) -> None:
        self._folder = settings.folder / "checkpoints"
        self._pace = Pace(settings.every or "auto")
        self._background = Background(self._folder, said=self._said)
        self._diary = diary

    def offer(self, state: Any, step: int, about: dict[str, Any], grid: Grid) -> None:
        """The state before this step, if a checkpoint is due."""
        if self._pace.due(step) and self._background.offer(state, step, {**about, "grid": grid()}):
            self._pace.began(step)

    def now(self, state: Any, step: int, about: dict[str, Any], grid: Grid) -> bool:
        """Write one before this worker ends; whether it could be."""
        self._background.close()
        began = time.monotonic()
        try:
            path = save(self._folder, state, step=step, about={**about, "grid": grid()})
        except OSError as error:
            print(f"no checkpoint could be written ({error})", flush=True)
            return False
        self._said(path, time.monotonic() - began, path.stat().st_size)
        print(f"checkpoint of {step} steps written", flush=True)
        return True

    def close(self) -> None:
        """Wait for the one being written."""
        self._background.close()

    def _said(self, result: Path | Exception, seconds: float, nbytes: int) -> None:
        if isinstance(result, Exception):
            print(f"no checkpoint could be written ({result}): training goes on", flush=True)
            return
        self._pace.cost = seconds
        if self._diary.log is not None:
            step = int(result.stem.rpartition("-")[2])
            epoch = self._diary.epoch
            self._diary.log.write(Saved(epoch=epoch, step=step, path=result.name, seconds=seconds, nbytes=nbytes))

    def load(self, path: str, like: Any, about: dict[str, Any]) -> tuple[Any, int, list[int]]:
        """(state, step, grid) to go on from; a checkpoint of other data or another batch is refused."""
        state, step, found = load(Path(path), like)
        for name, value in about.items():
            if found.get(name) != value:
                raise JobError(
                    f"{Path(path).name} is of a job with {name}={found.get(name)!r}, but this script has "
                    f"{value!r}: resume with the script that wrote it"
                )
        self._pace.began(step)
        return state, step, found["grid"]
