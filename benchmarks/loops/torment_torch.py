"""A loop for `benchmarks/chaos --device`: short steps of a small model of PyTorch on a device, in exact mode.

    torment_torch.py STEPS PAUSE BUDDIES DEVICE

PAUSE is the length of a step at least, in seconds; BUDDIES is 0. The ledger has a mark of the weights that the device
computes by itself: a worker alone takes no digest of its state, and an oracle should not be the digest that it checks.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # sums in an order of their own, else

import numpy as np
import torch
from torch.nn import functional

import meshmend as mm

LANES, BATCH, FEATURES, HIDDEN, CLASSES = 8, 64, 256, 512, 100
steps, pause, device = int(sys.argv[1]), float(sys.argv[2]), torch.device(sys.argv[4])
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)
random = np.random.default_rng(1)
x = random.normal(size=(512, FEATURES)).astype(np.float32)
y = (x[:, :CLASSES] + 0.5 * random.normal(size=(512, CLASSES))).argmax(1)
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(FEATURES, HIDDEN), torch.nn.GELU(), torch.nn.BatchNorm1d(HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
PLACES = 2 * torch.arange(max(one.numel() for one in model.parameters()), device=device) + 1


def mark() -> torch.Tensor:
    """24 bits, which the ledger keeps exactly; weights that differ once differ in all later steps."""
    found = torch.zeros((), dtype=torch.int64, device=device)
    for one in model.parameters():
        bits = one.detach().reshape(-1).view(torch.int32).to(torch.int64)
        found = 3 * found + (bits * PLACES[: len(bits)]).sum()
    return ((found ^ found >> 24) & 0xFFFFFF).to(torch.float32)


with mm.Job((x, y), batch=BATCH, lanes=LANES, reduction="exact") as job:
    job.share(model, optimizer)

    def backward(lane: tuple[np.ndarray, np.ndarray]) -> torch.Tensor:
        """One lane's gradients, and its loss."""
        rows, labels = (torch.as_tensor(column).to(device) for column in lane)
        loss = functional.cross_entropy(model(rows), labels) / LANES
        loss.backward()
        return loss.detach()

    for _ in job.steps(steps):
        loss = job.sum(backward)
        optimizer.step()
        time.sleep(pause)
        job.commit(loss=loss, weights=mark())
