"""What all scripts of the comparison share: the data, the sizes, and notes of what each process did.

Notes are for the driver: one file a process, one JSON line for each thing, times of CLOCK_MONOTONIC.

    {"drawn": step, "epoch": 0, "slot": 7, "ids": […], "at": t}     samples taken up for the step after `step` steps
    {"done": step, "counted": true, "parts": 4, "at": t}            a step is committed; so many workers are in its sum
    {"sum": seconds, "at": t}                                       one sum of all gradients
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WIDTHS = {25: [784, 1600, 1600, 1200, 400, 10], 100: [784, 3200, 3600, 2400, 900, 10]}
BATCH = {25: 192, 100: 128}
"""Samples of a step, over all workers."""
SAMPLES = 3840
"""A whole number of batches for both sizes, so that no epoch ends with a part of one."""
RATE = 0.001
EPOCHS = 10**6
"""The scripts go on until the driver ends them."""
SUMS = 5
"""How often a sum by itself is timed, after one that is not."""


def samples() -> tuple[Any, Any, Any]:
    """Inputs, their classes, and their numbers."""
    random = np.random.default_rng(1)
    y = random.integers(0, 10, SAMPLES)
    x = random.normal(size=(SAMPLES, 784)).astype(np.float32) + y[:, None].astype(np.float32) / 10
    return x, y, np.arange(SAMPLES)


class Notes:
    """What one process did, for the driver."""

    def __init__(self, rank: int, parts: int = 1) -> None:
        self.folder = Path(os.environ["PEERS_NOTES"])
        self.rank = rank
        self.parts = parts
        self.step = 0
        self.begun = 0.0
        self.early = True
        self._out = (self.folder / f"{rank}-{os.getpid()}.jsonl").open("a", buffering=1)

    def _write(self, **what: Any) -> None:
        self._out.write(json.dumps({**what, "at": time.monotonic()}, separators=(",", ":")) + "\n")

    def drawn(self, epoch: int, slot: int, ids: Any, step: int | None = None) -> None:
        """These samples are computed now: those of batch `slot` of the epoch."""
        self.step = self.step if step is None else step
        self._write(drawn=self.step, epoch=int(epoch), slot=int(slot), ids=[int(one) for one in ids])

    def done(self, step: int, counted: bool = True, parts: int = 0) -> None:
        """So many steps are committed now; or this one was thrown away."""
        self.step = step
        self._write(done=step, counted=counted, parts=parts or self.parts)

    def computed(self) -> None:
        """The gradients are there, and only the sum is missing."""
        self.begun = time.monotonic()

    def summed(self) -> None:
        """The sum is there."""
        self._write(sum=time.monotonic() - self.begun, step=self.step)

    def sums(self, one: Callable[[Any], Any], model: Any, before: Callable[[], Any] = bool) -> None:
        """Sums of as many numbers as the model has, with nothing else going on; not by those that come later."""
        if not self.early:
            return
        import torch

        before()
        flat = torch.zeros(sum(value.numel() for value in model.parameters()))
        for number in range(SUMS + 1):
            self.computed()
            one(flat)
            if number:
                self.summed()

    def together(self, workers: int) -> None:
        """Wait until all are here; who comes later, in the place of a dead one, goes on at once."""
        until, mark = time.monotonic() + 60, self.folder / f"{self.rank}.here"
        self.early = not mark.exists()
        mark.touch()
        while time.monotonic() < until and sum(1 for _ in self.folder.glob("*.here")) < workers:
            time.sleep(0.01)
