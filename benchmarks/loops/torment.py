"""A loop for `benchmarks/chaos`: many short steps of a very small model, in exact mode.

    torment.py STEPS PAUSE [BUDDIES [LANES]]

PAUSE is the length of a step at least, in seconds: failures should strike often, and steps be written down seldom. With
BUDDIES above 0 the update is sharded. What a state is then differs, so the ledger has a digest of the weights alone.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from xxhash import xxh3_64_intdigest

import meshmend as mm

BATCH, FEATURES, CLASSES = 64, 1024, 100  # messages of 400 KB, which stay in slices on one host
steps, pause, buddies = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0
lanes = int(sys.argv[4]) if sys.argv[4:] else 8
random = np.random.default_rng(1)
x = random.normal(size=(512, FEATURES)).astype(np.float32)
y = (x[:, :CLASSES] + 0.5 * random.normal(size=(512, CLASSES))).argmax(1)


def gradient(weights: np.ndarray, lane: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, float]:
    """That of a softmax regression, and the loss."""
    x, y = lane
    z = x @ weights
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    here = np.arange(len(y))
    loss = -np.log(np.maximum(p[here, y], 1e-9)).sum()
    p[here, y] -= 1
    return x.T @ p, loss


def init(weights: np.ndarray) -> dict[str, np.ndarray]:
    """The momentum."""
    return {"v": np.zeros_like(weights)}


def update(weights: np.ndarray, grads: np.ndarray, state: dict[str, np.ndarray]) -> tuple[np.ndarray, dict]:
    """A step of SGD with momentum; number by number, so of slices as of the whole."""
    speed = np.float32(0.9) * state["v"] + grads / np.float32(BATCH)
    return weights - np.float32(0.01) * speed, {"v": speed}


def mark(weights: np.ndarray) -> int:
    """A digest in 24 bits, which the ledger keeps exactly; weights that differ once differ in all later steps."""
    return xxh3_64_intdigest(weights) >> 40


with mm.Job((x, y), batch=BATCH, lanes=lanes, reduction="exact") as job:
    weights = np.zeros((FEATURES, CLASSES), np.float32)
    if buddies:
        weights = job.share(weights, optimizer=mm.optimizer(init, update), buddies=buddies)
        for _ in job.steps(steps):
            weights, loss = job.update(lambda lane, weights=weights: gradient(weights, lane))
            time.sleep(pause)
            job.commit(loss=loss / job.batch, weights=mark(weights))
    else:
        weights, state = job.share((weights, init(weights)))
        for _ in job.steps(steps):
            grads, loss = job.sum(lambda lane, weights=weights: gradient(weights, lane))
            weights, state = update(weights, grads, state)
            time.sleep(pause)
            job.commit((weights, state), loss=loss / job.batch, weights=mark(weights))
