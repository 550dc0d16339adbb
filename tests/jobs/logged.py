"""Six epochs of four steps that log to a TensorBoard and to a callback, as the first worker alone."""

from __future__ import annotations

import numpy as np
from torch.utils.tensorboard import SummaryWriter

import meshmend as mm


class Ends:
    """A Lightning-style callback: a line for the end of each epoch."""

    def on_train_epoch_end(self, trainer: mm.Job, module: object) -> None:
        del module
        with open("ends", "a") as file:
            file.write(f"{trainer.step}\n")


with mm.Job(np.ones((64, 3), np.float32), batch=16, lanes=4) as job:
    board = mm.on_first(job, lambda: SummaryWriter("board", purge_step=job.step - 1))
    callback = mm.on_first(job, Ends)
    state = job.share(np.zeros(3, np.float32))
    for _ in job.epochs(6):
        for step in job.steps():
            state = state + job.sum(lambda lane: lane.sum(0))
            job.commit(state)
            board.add_scalar("weight", state[0], step)
            board.flush()
        callback.on_train_epoch_end(job, None)
