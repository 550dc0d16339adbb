"""The loop as one writes it without meshmend: a flat buffer and MPI_Allreduce in the process that computes."""

from __future__ import annotations

import numpy as np
from model import ENDLESS, LANE_SIZE, LANES, Clock, arguments, data, functions, initial
from mpi4py import MPI

framework, size, kind, out, _ = arguments()
world = MPI.COMM_WORLD
x, y = data()
gradient, update = functions(framework)
state = initial(size)
batch = LANES * LANE_SIZE[size]
mine = range(world.rank * LANES // world.size, (world.rank + 1) * LANES // world.size)
names = sorted(state)
ends = np.cumsum([0] + [state[name].size for name in names])
flat = np.empty(ends[-1] + 1, np.float32)
total = np.empty_like(flat)
piece = len(flat) if kind == "one" else 1 << 20
views = {name: total[a:b].reshape(state[name].shape) for name, a, b in zip(names, ends, ends[1:], strict=False)}
order = np.random.default_rng(0).permutation(len(x))
clock = Clock(out)
for step in range(ENDLESS):
    clock.step()
    for lane in mine:
        begin = (step * batch + lane * LANE_SIZE[size]) % (len(x) - LANE_SIZE[size])
        ids = order[begin : begin + LANE_SIZE[size]]
        grads, loss = clock.lane(gradient, state, (x[ids], y[ids]))
        for name, a, b in zip(names, ends, ends[1:], strict=False):
            if lane == mine[0]:
                flat[a:b] = np.asarray(grads[name]).ravel()
            else:
                flat[a:b] += np.asarray(grads[name]).ravel()
        flat[-1] = loss if lane == mine[0] else flat[-1] + np.float32(loss)
    for begin in range(0, len(flat), piece):
        world.Allreduce(flat[begin : begin + piece], total[begin : begin + piece])
    state = clock.update(update, state, views, batch)
