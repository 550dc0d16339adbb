"""A loop for `benchmarks/chaos`: many short steps of a very small model, in exact mode.

    torment.py STEPS PAUSE

PAUSE is the length of a step at least, in seconds: failures should strike often, and steps be written down seldom.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import meshmend as mm

LANES, BATCH, FEATURES, CLASSES = 8, 64, 64, 10
steps, pause = int(sys.argv[1]), float(sys.argv[2])
random = np.random.default_rng(1)
x = random.normal(size=(2048, FEATURES)).astype(np.float32)
y = (x[:, :CLASSES] + 0.5 * random.normal(size=(2048, CLASSES))).argmax(1)


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


with mm.Job((x, y), batch=BATCH, lanes=LANES, reduction="exact") as job:
    state = job.share({"w": np.zeros((FEATURES, CLASSES), np.float32), "v": np.zeros((FEATURES, CLASSES), np.float32)})
    for _ in job.steps(steps):
        grads, loss = job.sum(lambda lane, state=state: gradient(state["w"], lane))
        speed = np.float32(0.9) * state["v"] + grads / np.float32(job.batch)
        state = {"w": state["w"] - np.float32(0.01) * speed, "v": speed}
        time.sleep(pause)
        job.commit(state, loss=loss / job.batch)
