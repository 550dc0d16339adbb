"""A loop for `recovery.py`: so many steps of the same model, with the loss in the ledger.

    recover.py MEGABYTES STEPS REDUCTION [LANES] [BUDDIES]

With BUDDIES the update is Adam's, and sharded.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from model import LANE_SIZE, LANES, data, initial, numpy_gradient, numpy_update

import meshmend as mm

size, steps, reduction = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
lanes = int(sys.argv[4]) if sys.argv[4:] else LANES
buddies = int(sys.argv[5]) if sys.argv[5:] else 0
with mm.Job(data(), batch=lanes * LANE_SIZE[size], lanes=lanes, reduction=reduction) as job:
    if buddies:
        sys.path.append(str(Path(__file__).parent.parent))
        from sharded import init, update

        weights = job.share(initial(size), optimizer=mm.optimizer(init, partial(update, rate=1e-5)), buddies=buddies)
        for _ in job.steps(steps):
            weights, loss = job.update(lambda lane, weights=weights: numpy_gradient(weights, lane))
            job.commit(loss=loss / job.batch)
    else:
        state = job.share(initial(size))
        for _ in job.steps(steps):
            grads, loss = job.sum(lambda lane, state=state: numpy_gradient(state, lane))
            state = numpy_update(state, grads, job.batch)
            job.commit(state, loss=loss / job.batch)
