"""The same loop with `mm.Job`."""

from __future__ import annotations

from model import ENDLESS, LANE_SIZE, LANES, Clock, arguments, data, functions, initial

import meshmend as mm

framework, size, kind, out, _ = arguments()
gradient, update = functions(framework)
clock = Clock(out)
how = {"reduction": "float", "wire": "bf16"} if kind == "bf16" else {"reduction": kind}
with mm.Job(data(), batch=LANES * LANE_SIZE[size], lanes=LANES, **how) as job:
    state = job.share(initial(size))
    for _ in job.steps(ENDLESS):
        clock.step()
        grads, loss = job.sum(lambda lane, state=state: clock.lane(gradient, state, lane))
        state = clock.update(update, state, grads, job.batch)
        job.commit(state)
