"""meshmend in PyTorch, one lane a worker."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset
from work import BATCH, EPOCHS, RATE, SAMPLES, WIDTHS, Notes, samples

import meshmend as mm

torch.set_num_threads(1)
torch.manual_seed(0)
size = int(sys.argv[1])
notes = Notes(rank=int(os.environ["MESHMEND_RANK"]), parts=int(sys.argv[2]))
dataset = TensorDataset(*map(torch.from_numpy, samples()))
layers = [part for n, m in zip(WIDTHS[size], WIDTHS[size][1:], strict=False) for part in (nn.Linear(n, m), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)


def backward(lane):
    """Gradients of one lane."""
    x, y, ids = lane
    notes.drawn(*divmod(job.step, SAMPLES // BATCH[size]), ids, job.step)
    loss = loss_of(model(x), y) / job.lanes
    loss.backward()
    notes.computed()
    return loss


with mm.Job(dataset, batch=BATCH[size], lanes=int(sys.argv[2]), reduction=sys.argv[3]) as job:
    job.share(model, optimizer)
    for step in job.steps(EPOCHS):
        loss = job.sum(backward)
        notes.summed()
        optimizer.step()
        job.commit()
        notes.done(step + 1)
