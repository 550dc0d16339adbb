"""Training in PyTorch in one process: what the other scripts of PyTorch are made from."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, EPOCHS, RATE, WIDTHS, Notes, samples

torch.set_num_threads(1)
torch.manual_seed(0)
size = int(sys.argv[1])
notes = Notes(rank=0)
dataset = TensorDataset(*map(torch.from_numpy, samples()))
layers = [part for n, m in zip(WIDTHS[size], WIDTHS[size][1:], strict=False) for part in (nn.Linear(n, m), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
loader = DataLoader(dataset, batch_size=BATCH[size], shuffle=True)
step = 0
for epoch in range(EPOCHS):
    for slot, (x, y, ids) in enumerate(loader):
        notes.drawn(epoch, slot, ids)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        notes.done(step)
