"""meshmend in PyTorch with the loop as it was, one lane a worker."""
# ruff: noqa: B007 (the loop is the plain script's, which counts its batches)

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, EPOCHS, RATE, SAMPLES, WIDTHS, Notes, samples

import meshmend as mm

torch.set_num_threads(1)
torch.manual_seed(0)
size = int(sys.argv[1])
dataset = TensorDataset(*map(torch.from_numpy, samples()))
layers = [part for n, m in zip(WIDTHS[size], WIDTHS[size][1:], strict=False) for part in (nn.Linear(n, m), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
with mm.Job(dataset, batch=BATCH[size], lanes=int(sys.argv[2]), reduction=sys.argv[3]) as job:
    notes = Notes(rank=job.rank, parts=int(sys.argv[2]))
    # Hooks of the update, which follows the last lane's sum.
    optimizer.register_step_pre_hook(lambda *_: notes.summed())
    optimizer.register_step_post_hook(lambda *_: notes.done(job.step + 1))
    model, optimizer = mm.torch.wrap(model, optimizer, job)
    loader = DataLoader(dataset, batch_sampler=mm.torch.Sampler(job))
    step = 0
    for epoch in job.epochs(EPOCHS):
        for slot, (x, y, ids) in enumerate(loader):
            notes.drawn(epoch, job.step % (SAMPLES // BATCH[size]), ids, job.step)
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            notes.computed()
            optimizer.step()
            step += 1
