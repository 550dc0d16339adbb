"""DistributedDataParallel over gloo."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from work import BATCH, EPOCHS, RATE, WIDTHS, Notes, samples

torch.set_num_threads(1)
torch.manual_seed(0)
size = int(sys.argv[1])
dist.init_process_group("gloo")
notes = Notes(rank=dist.get_rank(), parts=dist.get_world_size())
dataset = TensorDataset(*map(torch.from_numpy, samples()))
layers = [part for n, m in zip(WIDTHS[size], WIDTHS[size][1:], strict=False) for part in (nn.Linear(n, m), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers[:-1]))
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH[size] // dist.get_world_size(), sampler=sampler)
step = 0
notes.sums(dist.all_reduce, model)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for slot, (x, y, ids) in enumerate(loader):
        notes.drawn(epoch, slot, ids)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        notes.done(step)
