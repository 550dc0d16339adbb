"""meshmend in JAX, one lane a worker."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from work import BATCH, EPOCHS, RATE, SAMPLES, WIDTHS, Notes, samples

import meshmend as mm

size = int(sys.argv[1])
notes = Notes(rank=int(os.environ["MESHMEND_RANK"]), parts=int(sys.argv[2]))
data = samples()
random = np.random.default_rng(2)
shapes = list(zip(WIDTHS[size], WIDTHS[size][1:], strict=False))
params = [(random.normal(size=(n, m)).astype(np.float32) * (2 / n) ** 0.5, np.zeros(m, np.float32)) for n, m in shapes]


def loss_of(params, x, y):
    """The mean loss."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ w + b), y[:, None], 1).mean()


gradient = jax.jit(jax.value_and_grad(loss_of))
update = jax.jit(lambda params, grads: jax.tree.map(lambda p, g: p - RATE / job.lanes * g, params, grads))


def work(params, lane):
    """Loss and gradients of one lane."""
    x, y, ids = lane
    notes.drawn(*divmod(job.step, SAMPLES // BATCH[size]), ids, job.step)
    out = jax.block_until_ready(gradient(params, x, y))
    notes.computed()
    return out


with mm.Job(data, batch=BATCH[size], lanes=int(sys.argv[2]), reduction=sys.argv[3]) as job:
    params = job.share(params, warm=work)
    for step in job.steps(EPOCHS):
        loss, grads = job.sum(lambda lane, params=params: work(params, lane))
        notes.summed()
        params = update(params, grads)
        job.commit(params)
        notes.done(step + 1)
