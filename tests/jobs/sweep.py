"""A loop over learning rates, some of which diverge: the script catches that outside of the job and goes on.

With `kill`, worker 1 dies in the last job, and its replacement passes through those before it.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import meshmend as mm


def gradient(weights: Any, lane: Any) -> Any:
    return (lane * (lane @ weights)[:, None]).sum(0)


def train(rate: float, *, kills: bool) -> float:
    weights: Any = np.ones(3, np.float32)
    with mm.Job(np.ones((64, 3), np.float32), batch=8, lanes=4, reduction="exact") as job:
        weights = job.share(weights)
        for step in job.steps(6):
            if kills and step == 2 and job.rank == 1 and not Path("died").exists():
                Path("died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            grads = job.sum(partial(gradient, weights))
            with np.errstate(over="ignore"):
                weights = weights - np.float32(rate) * grads
            job.commit(weights)
    return float(weights.sum())


found = []
for rate in (1e30, 0.1, 1e30, 0.2):
    try:
        found.append(train(rate, kills="kill" in sys.argv and rate == 0.2))
    except mm.NotFinite as error:
        found.append(-error.step)
print(f"found {found}", flush=True)
