"""A loop for `recovery.py` and `chaos.py`: so many steps of the same model, with the loss in the ledger."""

from __future__ import annotations

import sys

from model import LANE_SIZE, LANES, data, initial, numpy_gradient, numpy_update

import meshmend as mm

size, steps, reduction = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
lanes = int(sys.argv[4]) if sys.argv[4:] else LANES
with mm.Job(data(), batch=lanes * LANE_SIZE[size], lanes=lanes, reduction=reduction) as job:
    state = job.share(initial(size))
    for _ in job.steps(steps):
        grads, loss = job.sum(lambda lane, state=state: numpy_gradient(state, lane))
        state = numpy_update(state, grads, job.batch)
        job.commit(state, loss=loss / job.batch)
