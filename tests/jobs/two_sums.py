"""Steps of two sums: a critic's gradients, then those of a generator that is judged by the new critic. Exact sums.

The second sum is larger than the first and depends on what the script computed from it. Every ten steps, all wait
until there are as many workers as the second argument says; in the step that a third one names, a worker kills its
launcher within the second sum.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import meshmend as mm

data = np.random.default_rng(0).standard_normal((960, 8)).astype(np.float32)
numbers = np.random.default_rng(1)
critic = numbers.standard_normal(8).astype(np.float32)
generator = numbers.standard_normal((8, 40)).astype(np.float32)
rate = np.float32(1e-3)


def judge(real, draws):
    fake = draws.rng.standard_normal((len(real), 40)).astype(np.float32) @ generator.T
    return (real - fake).sum(0), np.float32((real @ critic).sum())


def fool(real, draws):
    if [str(draws.step)] == sys.argv[3:] and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getppid(), signal.SIGKILL)
    noise = draws.rng.standard_normal((len(real), 40)).astype(np.float32)
    return np.tanh(critic)[:, None] * noise.sum(0)


with mm.Job(data, batch=96, lanes=12, reduction="exact") as job:
    critic, generator = job.share((critic, generator))
    for step in job.steps(int(sys.argv[1])):
        while step % 10 == 0 and len(job.gather(job.rank)) < int(sys.argv[2]):
            time.sleep(0.05)
        grads, loss = job.sum(judge)
        critic = critic - rate * grads
        generator = generator - rate * job.sum(fool)
        job.commit((critic, generator), loss=loss / job.batch)
digest = hashlib.sha256(critic.tobytes() + generator.tobytes()).hexdigest()[:16]
print(f"weights {digest}", flush=True)
