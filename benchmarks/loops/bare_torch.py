"""The loop in PyTorch as one writes it without meshmend: every gradient is summed in place with MPI_Allreduce."""

from __future__ import annotations

import torch
from model import ENDLESS, Clock, arguments
from model_torch import batch_of, dataset, made
from mpi4py import MPI

_, size, _, out, _ = arguments()
world = MPI.COMM_WORLD
x, y = dataset().tensors
model, optimizer, backward = made(size, world.size)
lane = batch_of(size) // world.size
order = torch.randperm(len(x))
clock = Clock(out)
for step in range(ENDLESS):
    clock.step()
    begin = (step * batch_of(size) + world.rank * lane) % (len(x) - lane)
    ids = order[begin : begin + lane]
    optimizer.zero_grad()
    clock.lane(backward, (x[ids], y[ids]))
    for parameter in model.parameters():
        world.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
    clock.update(optimizer.step)
