"""Two jobs, one after another: the second one has other data, other lanes, and begins where the first one ended.

Words: `one=RANK@STEP`, `between=RANK` and `two=RANK@STEP` kill that worker there, once; `gate=WHERE` waits there for
the file "open" in the working directory; `torch` has the second job train a PyTorch model.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import meshmend as mm

WORDS = {name: value for name, _, value in (word.partition("=") for word in sys.argv[1:])}
RANK = int(os.environ.get("MESHMEND_RANK", "0"))


def die_once(where: str, rank: int, wanted: str) -> None:
    if WORDS.get(where) == wanted and rank == RANK and not Path(where).exists():
        Path(where).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def wait_at(where: str) -> None:
    if WORDS.get("gate") == where and "MESHMEND_RANK" in os.environ:
        print(f"waits {where}", flush=True)
        while not Path("open").exists():
            time.sleep(0.01)


def gradient(weights: Any, lane: Any) -> Any:
    return (lane * (lane @ weights)[:, None]).sum(0)


def train(name: str, weights: Any, *, size: int, lanes: int, steps: int) -> Any:
    data = np.random.default_rng(1).normal(size=(size, 5)).astype(np.float32)
    with mm.Job(data, batch=4 * lanes, lanes=lanes, reduction="exact") as job:
        weights = job.share(weights)
        for step in job.steps(steps):
            if step == 3:
                with job.pause():
                    wait_at(name)
            grads = job.sum(partial(gradient, weights))
            weights = weights - 0.01 * grads / job.batch
            job.commit(weights)
            die_once(name, job.rank, f"{RANK}@{step}")
        print(f"{name} {job.evaluate(data, lambda chunk: float((chunk @ weights).sum()))}", flush=True)
    return weights


def train_torch(weights: Any) -> Any:
    import torch

    model = torch.nn.Linear(5, 1)
    with torch.no_grad():
        model.weight[:] = torch.from_numpy(weights)
        model.bias[:] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with mm.Job(torch.ones(48, 5), batch=12, lanes=6, reduction="exact") as job:
        job.share(model, optimizer)
        for step in job.steps(9):
            job.sum(lambda lane: model(lane).square().mean().backward())
            optimizer.step()
            optimizer.zero_grad()
            job.commit()
            die_once("two", job.rank, f"{RANK}@{step}")
    return model.weight.detach().numpy()


first = train("one", np.ones(5, np.float32), size=640, lanes=8, steps=8)
die_once("between", RANK, str(RANK))
wait_at("between")
last = train_torch(first) if "torch" in WORDS else train("two", 2 * first, size=480, lanes=6, steps=9)
print(f"weights {last.tobytes().hex()} after", flush=True)
