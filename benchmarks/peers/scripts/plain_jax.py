"""Training in JAX in one process: what the other scripts of JAX are made from."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from work import BATCH, EPOCHS, RATE, SAMPLES, WIDTHS, Notes, samples

size = int(sys.argv[1])
notes = Notes(rank=0)
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
update = jax.jit(lambda params, grads: jax.tree.map(lambda p, g: p - RATE * g, params, grads))
step = 0
for epoch in range(EPOCHS):
    order = np.random.default_rng(epoch).permutation(SAMPLES)
    for slot, mine in enumerate(order.reshape(-1, BATCH[size])):
        x, y, ids = (column[mine] for column in data)
        notes.drawn(epoch, slot, ids)
        loss, grads = gradient(params, x, y)
        params = update(params, grads)
        step += 1
        notes.done(step)
