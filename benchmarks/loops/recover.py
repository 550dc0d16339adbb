"""A loop for `recovery.py`: so many steps of the same model, with the loss in the ledger.

    recover.py MEGABYTES STEPS REDUCTION [LANES] [BUDDIES] [FRAMEWORK]

FRAMEWORK is numpy, torch or jax. With BUDDIES, in numpy only, the update is Adam's, and sharded.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from model import LANE_SIZE, LANES, data, functions, initial

import meshmend as mm

size, steps, reduction = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
lanes = int(sys.argv[4]) if sys.argv[4:] else LANES
buddies = int(sys.argv[5]) if sys.argv[5:] else 0
framework = sys.argv[6] if sys.argv[6:] else "numpy"


def trees(job: mm.Job) -> None:
    """A state that is a tree of arrays."""
    gradient, update = functions(framework)
    state = job.share(initial(size))
    for _ in job.steps(steps):
        grads, loss = job.sum(lambda lane, state=state: gradient(state, lane))
        state = update(state, grads, job.batch)
        job.commit(state, loss=loss / job.batch)


def sharded(job: mm.Job) -> None:
    """The same with Adam, whose state is divided."""
    sys.path.append(str(Path(__file__).parent.parent))
    from sharded import init, update

    gradient, _ = functions(framework)
    weights = job.share(initial(size), optimizer=mm.optimizer(init, partial(update, rate=1e-5)), buddies=buddies)
    for _ in job.steps(steps):
        weights, loss = job.update(lambda lane, weights=weights: gradient(weights, lane))
        job.commit(loss=loss / job.batch)


def objects(job: mm.Job) -> None:
    """PyTorch's model and optimizer."""
    from model_torch import made

    model, optimizer, backward = made(size, lanes)
    job.share(model, optimizer)
    for _ in job.steps(steps):
        job.sum(backward)
        optimizer.step()
        job.commit()


def samples() -> object:
    """The same data for all of them."""
    if framework == "torch":
        from model_torch import dataset

        return dataset()
    return data()


with mm.Job(samples(), batch=lanes * LANE_SIZE[size], lanes=lanes, reduction=reduction) as job:
    loop = objects if framework == "torch" else sharded if buddies else trees
    loop(job)
