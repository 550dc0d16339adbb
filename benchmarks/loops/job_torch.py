"""The same loop in PyTorch with `mm.Job`."""

from __future__ import annotations

from model import ENDLESS, Clock, arguments
from model_torch import batch_of, dataset, made

import meshmend as mm

_, size, kind, out, workers = arguments()
model, optimizer, backward = made(size, workers)
clock = Clock(out)
how = {"reduction": "float", "wire": "bf16"} if kind == "bf16" else {"reduction": kind}
with mm.Job(dataset(), batch=batch_of(size), lanes=workers, **how) as job:
    job.share(model, optimizer)
    for _ in job.steps(ENDLESS):
        clock.step()
        job.sum(lambda lane: clock.lane(backward, lane))
        clock.update(optimizer.step)
        job.commit()
