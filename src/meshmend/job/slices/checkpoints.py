"""When the slices of a sharded job are written, and by whom: each worker writes those that it gives out.

All must write the same step. So the first worker, when a checkpoint is due, and any worker that has to end say so in
their next part, and all see in that round's total that the state after it is to be saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from meshmend.base.clocks import SLICES_POLL, SLICES_WAIT
from meshmend.base.env import Settings
from meshmend.base.units import plural
from meshmend.job.checkpoints.checkpoints import DIVERGED, Checkpoints
from meshmend.job.frameworks.base import Framework
from meshmend.job.ledger import StepLedger
from meshmend.job.slices.files import (
    SHARDED,
    Snapshot,
    are_there,
    count,
    drop_unnamed,
    resume,
    snapshot,
    write_index,
    write_slices,
)
from meshmend.job.slices.replica import ShardedReplica
from meshmend.job.state.safetensors import path_of
from meshmend.job.state.tree import Leaves


class SliceCheckpoints(Checkpoints):
    """A worker's checkpoints of its slices; `mine` are those that it gives out."""

    def __init__(
        self,
        settings: Settings | None,
        ledger: StepLedger,
        job: int,
        replica: ShardedReplica,
        mine: Callable[[], Collection[int]],
    ) -> None:
        super().__init__(settings, ledger, job)
        self._replica, self._mine = replica, mine
        self._thread: Thread | None = None
        self.written = -1
        """The step whose slices this worker has written last, or is writing."""

    @property
    def busy(self) -> bool:
        """Whether slices are being written."""
        return self._thread is not None and self._thread.is_alive()

    def due(self, step: int) -> bool:
        """Whether it is time for a checkpoint."""
        return self._pace.due(step) and not self.busy

    def offer(self, framework: Framework, step: int, about: Callable[[], dict[str, Any]]) -> None:
        """Nothing is written when a step is confirmed: its slices have been updated since."""

    def begin(self, step: int, about: dict[str, Any]) -> None:
        """Write this worker's slices of the state before `step` in the background; all workers do."""
        if self.busy:
            return
        self.written = step
        self._pace.began(step)
        found, digests = snapshot(self._replica.holder, self._mine()), self._replica.agreed().copy()
        extras = [(name, np.array(value)) for name, value in self._replica.weights.extras()]
        work = (step, found, digests, about, extras)
        self._thread = Thread(target=self._work, args=work, name="meshmend-checkpoint")
        self._thread.start()

    def _work(self, step: int, found: Snapshot, digests: Any, about: dict[str, Any], extras: Leaves) -> None:
        began = time.monotonic()
        try:
            nbytes = write_slices(self._folder, step, found)
            if are_there(self._folder, step, digests):
                path = self._index(step, digests, about, extras)
                self._keep(step)
                self._said(path, time.monotonic() - began, nbytes, step)
        except Exception as error:
            self._said(error, time.monotonic() - began, 0)

    def _index(self, step: int, digests: Any, about: dict[str, Any], extras: Leaves, name: str = "") -> Path:
        grid = np.array(about["grid"], np.int16)
        weights = [[leaf, list(value.shape)] for leaf, value in self._replica.weights.leaves()]
        more = {**about, SHARDED: {"weights": weights}}
        return write_index(self._folder, step, self._replica.holder, digests, grid, more, name, extras)

    def _keep(self, step: int) -> None:
        """Keep the two newest, and those with names."""
        older = sorted(path for path in self._folder.glob("step-*.safetensors") if path < path_of(self._folder, step))
        for old in older[:-1]:
            old.unlink(missing_ok=True)
        drop_unnamed(self._folder, step)

    def write(self, step: int, slices: Collection[int]) -> None:
        """Write these slices now; on a full disk, when there is room."""
        self.close()
        self.patiently(
            lambda: write_slices(self._folder, step, snapshot(self._replica.holder, slices)), "slices of a checkpoint"
        )

    def complete(self, step: int, about: dict[str, Any], name: str = "") -> bool:
        """Write the index, if all slices are there; whether it is there."""
        digests = self._replica.agreed()
        index = path_of(self._folder, step, name)
        if not name and DIVERGED not in about and index.exists():
            return True
        if not are_there(self._folder, step, digests):
            return False
        began = time.monotonic()
        path = self._index(step, digests, about, self._replica.weights.extras(), name)
        self._keep(step)
        self._said(path, time.monotonic() - began, path.stat().st_size, step)
        print(f"checkpoint {name + ' ' if name else ''}of {plural(step, 'step')} written", flush=True)
        return True

    def now(self, framework: Framework, step: int, about: dict[str, Any], name: str = "") -> bool:
        """Write this worker's slices before it ends, and wait for those of the others; whether all are there."""
        del framework
        self.write(step, self._mine())
        return self.completed(step, about, name)

    def completed(self, step: int, about: dict[str, Any], name: str = "") -> bool:
        """Write the index when all slices are there; False where no more of them come."""
        until, before = 0.0, -1
        while not self.complete(step, about, name):
            there = count(self._folder, step)
            if there != before:
                until, before = time.monotonic() + SLICES_WAIT, there
            if time.monotonic() > until:
                print(
                    f"the slices of step {step} are not all in {self._folder}, so there is no checkpoint of it: all "
                    "hosts must share one runs folder",
                    flush=True,
                )
                return False
            time.sleep(SLICES_POLL)
        return True

    def found(self, step: int) -> bool:
        """Whether there is a checkpoint of this step, which all began to write: the last of them writes the index."""
        self.close()
        until = time.monotonic() + SLICES_WAIT
        while not path_of(self._folder, step).exists():
            if time.monotonic() > until:
                return False
            time.sleep(SLICES_POLL)
        return True

    def close(self) -> None:
        """Wait until what is being written has been."""
        if self._thread is not None:
            self._thread.join()

    def load(
        self, path: str | Path, framework: Framework, job: dict[str, Any]
    ) -> tuple[int, list[int], dict[str, Any]]:
        """Adopt a checkpoint: see `Checkpoints.load`."""
        del framework
        step, about, digests, grid, extras = resume(Path(path), self._replica.holder)
        self.check(path, about, job)
        weights = self._replica.weights
        weights.adopt(weights.leaves(), extras)
        self._replica.table = digests
        self._pace.began(step)
        return step, grid.tolist(), about
