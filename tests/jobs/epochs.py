"""Two epochs, each with an evaluation; with `wait`, the script waits before the first one until it may go on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import meshmend as mm

DATA = np.ones((32, 3), np.float32)

with mm.Job(DATA, batch=16, lanes=4) as job:
    weights = job.share(np.ones(3, np.float32))
    for epoch in job.epochs(2):
        for _ in job.steps():
            weights = weights - job.sum(lambda lane: lane.sum(0)) / np.float32(64)
            job.commit(weights)
        with job.pause():
            if "wait" in sys.argv and epoch == 0:
                print("waits", flush=True)
                while not Path("open").exists():
                    time.sleep(0.01)
        found = job.evaluate(DATA, lambda chunk: len(chunk))
        print(f"epoch {epoch} evaluated at {job.step} on {found}", flush=True)
