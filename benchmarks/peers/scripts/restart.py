"""DistributedDataParallel over gloo with a checkpoint every ten steps: torchrun starts all anew when one dies."""

import os
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
checkpoint = sys.argv[2]
dist.init_process_group("gloo")
notes = Notes(rank=dist.get_rank(), parts=dist.get_world_size())
dataset = TensorDataset(*map(torch.from_numpy, samples()))
layers = [part for n, m in zip(WIDTHS[size], WIDTHS[size][1:], strict=False) for part in (nn.Linear(n, m), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
step = 0
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
model = DistributedDataParallel(model)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=BATCH[size] // dist.get_world_size(), sampler=sampler)
first, skip = divmod(step, len(loader))
notes.step = step
for epoch in range(first, EPOCHS):
    sampler.set_epoch(epoch)
    for slot, (x, y, ids) in enumerate(loader):
        if epoch == first and slot < skip:
            continue
        notes.drawn(epoch, slot, ids)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        notes.done(step)
        if step % 10 == 0 and dist.get_rank() == 0:
            saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(saved, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
