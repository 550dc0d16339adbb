"""A bare mpi4py loop in PyTorch: every gradient is summed in place with MPI_Allreduce."""

import sys

import torch
from mpi4py import MPI
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from work import BATCH, EPOCHS, RATE, WIDTHS, Notes, samples

torch.set_num_threads(1)
torch.manual_seed(0)
size = int(sys.argv[1])
world = MPI.COMM_WORLD
notes = Notes(rank=world.rank, parts=world.size)
dataset = TensorDataset(*map(torch.from_numpy, samples()))
layers = [part for n, m in zip(WIDTHS[size], WIDTHS[size][1:], strict=False) for part in (nn.Linear(n, m), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
sampler = DistributedSampler(dataset, num_replicas=world.size, rank=world.rank)
loader = DataLoader(dataset, batch_size=BATCH[size] // world.size, sampler=sampler)
step = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for slot, (x, y, ids) in enumerate(loader):
        notes.drawn(epoch, slot, ids)
        optimizer.zero_grad()
        loss = loss_of(model(x), y) / world.size
        loss.backward()
        notes.computed()
        for parameter in model.parameters():
            world.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
        notes.summed()
        optimizer.step()
        step += 1
        notes.done(step)
