"""The same loop with `mm.Job`."""

from __future__ import annotations

from model import LANE_SIZE, LANES, Clock, arguments, data, first, functions, initial

import meshmend as mm

framework, size, warm, steps, kind, out = arguments()
gradient, update = functions(framework)
clock = Clock(warm)
with mm.Job(data(), batch=LANES * LANE_SIZE[size], lanes=LANES, reduction=kind) as job:
    state = job.share(initial(size))
    loss = 0.0
    for _ in job.steps(warm + steps):
        clock.step()
        grads, loss = job.sum(lambda lane: clock.lane(gradient, state, lane))
        state = clock.update(update, state, grads, job.batch)
        job.commit(state)
    clock.end()
if first():
    clock.write(out, float(loss))
