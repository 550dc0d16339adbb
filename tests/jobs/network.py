"""A PyTorch training script for tests, as a user would write it: Adam, batch norm, dropout, clipping, a scheduler, EMA.

`way=wrap` is the same as an existing loop over a DataLoader, `way=ahead` over one that reads ahead; `steps=NUMBER` and
`pause=SECONDS` say how long it takes; `device=cuda` trains there, by sums.
"""

import hashlib
import os
import sys
import time
from functools import partial

import numpy as np
import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import meshmend as mm

torch.set_num_threads(1)
OPTIONS = dict(word.split("=") for word in sys.argv[1:])
DEVICE = OPTIONS.get("device", "cpu")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(1)
    x = torch.from_numpy(random.normal(size=(500, 8)).astype(np.float32))
    return x, x[:, :3].argmax(1)


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer, object, AveragedModel]:
    torch.manual_seed(int(os.environ.get("MESHMEND_RANK", "0")))  # all get the weights of the first
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(16, 3),
    ).to(DEVICE)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15), average


def by_sum(
    job: mm.Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: object, average: AveragedModel
) -> None:
    job.share(model, optimizer, scheduler, average)

    def backward(lane: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = functional.cross_entropy(model(lane[0].to(DEVICE)), lane[1].to(DEVICE)) / job.lanes
        loss.backward()
        return loss

    for _ in job.steps(int(OPTIONS.get("steps", 16))):
        loss = job.sum(backward)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
        job.commit(loss=loss)
        time.sleep(float(OPTIONS.get("pause", 0)))


def by_loop(
    job: mm.Job, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: object, average: AveragedModel
) -> None:
    clip = partial(torch.nn.utils.clip_grad_norm_, [*model.parameters()], 0.5)
    model, optimizer, scheduler, average = mm.torch.wrap(model, optimizer, job, scheduler, average, after_sum=clip)
    if OPTIONS["way"] == "ahead":
        loader = sampler = mm.torch.Loader(job, num_workers=1)
    else:
        sampler = mm.torch.Sampler(job)
        loader = DataLoader(TensorDataset(*data()), batch_sampler=sampler)
    for epoch in range(-(-int(OPTIONS.get("steps", 16)) // 8)):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step(loss=loss)
            scheduler.step()
            average.update_parameters(model)
            time.sleep(float(OPTIONS.get("pause", 0)) / 3)


def main() -> None:
    model, optimizer, scheduler, average = made()
    with mm.Job(data(), batch=64, lanes=8, reduction=OPTIONS.get("reduction", "exact")) as job:
        way = by_loop if OPTIONS.get("way") in ("wrap", "ahead") else by_sum
        way(job, model, optimizer, scheduler, average)
        values = [*model.state_dict().values(), *average.state_dict().values()]
        values += [v for s in optimizer.state.values() for _, v in sorted(s.items())]
        digest = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in values))
        print(f"weights {digest.hexdigest()} after, rate {scheduler.get_last_lr()[0]:.6f}", flush=True)


if __name__ == "__main__":
    main()
