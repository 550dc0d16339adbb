"""A PyTorch training script for tests, as a user would write it: Adam, batch norm, dropout, clipping and a scheduler.

`steps=NUMBER` and `pause=SECONDS` say how long it takes.
"""

import hashlib
import os
import sys
import time

import numpy as np
import torch
from torch.nn import functional

import meshmend as mm

torch.set_num_threads(1)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(1)
    x = torch.from_numpy(random.normal(size=(500, 8)).astype(np.float32))
    return x, x[:, :3].argmax(1)


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer, object]:
    torch.manual_seed(int(os.environ.get("MESHMEND_SEAT", "0")))  # all get the weights of the first
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(16, 3),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    model, optimizer, scheduler = made()
    with mm.Job(data(), batch=64, lanes=8, reduction=options.get("reduction", "exact")) as job:
        job.share(model, optimizer, scheduler)

        def backward(lane: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            loss = functional.cross_entropy(model(lane[0]), lane[1]) / job.lanes
            loss.backward()
            return loss

        for _ in job.steps(int(options.get("steps", 15))):
            loss = job.sum(backward)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            job.commit(loss=loss)
            time.sleep(float(options.get("pause", 0)))
        values = [*model.state_dict().values(), *(v for s in optimizer.state.values() for _, v in sorted(s.items()))]
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values))
        print(f"weights {digest.hexdigest()} after {job.step}, rate {scheduler.get_last_lr()[0]:.6f}", flush=True)


if __name__ == "__main__":
    main()
