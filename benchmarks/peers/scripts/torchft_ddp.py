"""torchft over gloo: each process is a replica group of its own, and a lighthouse tells who takes part."""

import os
import sys
from datetime import timedelta

import torch
from torch import nn
from torch.distributed import TCPStore
from torch.utils.data import DataLoader, TensorDataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo
from work import BATCH, EPOCHS, RATE, WIDTHS, Notes, samples

torch.set_num_threads(1)
torch.manual_seed(0)
size = int(sys.argv[1])
group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
notes = Notes(rank=group, parts=groups)
dataset = TensorDataset(*map(torch.from_numpy, samples()))
layers = [part for n, m in zip(WIDTHS[size], WIDTHS[size][1:], strict=False) for part in (nn.Linear(n, m), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)


def load(saved):
    """Take over the state of another group."""
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=float(os.environ["SUM_SECONDS"]))), timeout=timedelta(seconds=30),
    heartbeat_interval=timedelta(milliseconds=int(os.environ["HEARTBEAT_MS"])), min_replica_size=1, init_sync=False,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, load_state_dict=load,
    replica_id=f"group_{group}", hostname="localhost", store_addr="localhost", store_port=store.port, rank=0,
    world_size=1,
)  # fmt: skip
model = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, optimizer)
sampler = DistributedSampler(dataset, replica_rank=group, num_replica_groups=groups, group_rank=0, num_replicas=1)
loader = DataLoader(dataset, batch_size=BATCH[size] // groups, sampler=sampler)
notes.together(groups)
notes.sums(lambda flat: manager.allreduce(flat).wait(), model, before=manager.start_quorum)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for slot, (x, y, ids) in enumerate(loader):
        notes.drawn(epoch, slot, ids, manager.current_step())
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        committed = manager.current_step() > notes.step and manager.is_participating()
        notes.done(manager.current_step(), committed, manager.num_participants())
