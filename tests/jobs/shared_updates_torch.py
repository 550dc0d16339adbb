"""A small exact PyTorch training run for tests: its updates sharded, or with `plain=1` the loop that it must equal.

`steps=NUMBER`; `kind=NAME`: the optimizer (adamw, sgd, rmsprop, muon, lamb); `wrap=1`: a wrapped loop of two epochs;
`clip=NORM`; `crowd=N` ends after the first step from 20 on that N workers took part in; `pause=SECONDS` per step;
`best=STEP` saves a checkpoint of that name after it.
"""

import hashlib
import sys
import time

import numpy as np
import torch
from torch import nn

import meshmend as mm

KINDS = {
    "adamw": (torch.optim.AdamW, {"lr": 3e-3, "amsgrad": True}),
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "dampening": 0.5, "nesterov": False}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.9, "centered": True}),
    "lamb": (mm.lamb(0.01), {}),
    "muon": (getattr(torch.optim, "Muon", None), {"lr": 1e-2}),
}


class Net(nn.Module):
    """Batch norm has buffers, dropout draws numbers, and the head of the first layer is used twice."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.one = nn.Linear(20, 90, bias=bias)
        self.norm = nn.BatchNorm1d(90, affine=bias)
        self.two = nn.Linear(90, 90, bias=bias)
        self.three = nn.Linear(90, 20, bias=False)
        self.three.weight = nn.Parameter(self.one.weight.detach().T.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.one(x)))
        return self.three(nn.functional.dropout(self.two(x), 0.1, self.training))


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 20)).astype(np.float32)
    name, plain = options.get("kind", "adamw"), "plain" in options
    kind, defaults = KINDS[name]
    model = Net(bias=name != "muon")
    bias = [one for one in model.parameters() if one.ndim == 1]
    groups = [{"params": [one for one in model.parameters() if one.ndim > 1]}]
    groups += [{"params": bias, "weight_decay": 0.0}] if bias else []
    clip = float(options["clip"]) if "clip" in options else None
    if plain:
        optimizer = kind(groups, **defaults)
    else:
        slices = "tensors" if name == "muon" else None
        optimizer = mm.torch.ShardedOptimizer(groups, kind, clip=clip, slices=slices, **defaults)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    steps, crowd = int(options.get("steps", 12)), int(options.get("crowd", -1))
    with mm.Job(x, batch=64, lanes=8, reduction="exact") as job:
        if "wrap" in options:
            net, optimizer, schedule = mm.torch.wrap(model, optimizer, job, schedule)
            rows = torch.utils.data.TensorDataset(torch.from_numpy(x))
            loader = torch.utils.data.DataLoader(rows, batch_sampler=mm.torch.Sampler(job))
            for _ in job.epochs(2):
                for (batch,) in loader:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(net(batch), batch).backward()
                    optimizer.step()
                    schedule.step()
        else:
            job.share(model, optimizer, schedule)

            def backward(lane: np.ndarray) -> torch.Tensor:
                rows = torch.from_numpy(lane)
                loss = nn.functional.mse_loss(model(rows), rows, reduction="sum") / 64
                loss.backward()
                return loss

            for step in job.steps(steps):
                if plain:
                    loss = job.sum(backward)
                    optimizer.step()
                else:
                    loss = job.update(backward)
                schedule.step()
                job.commit(loss=loss)
                if step == int(options.get("best", -1)):
                    job.save("best")
                time.sleep(float(options.get("pause", 0)))
                if step >= 20 and len(job.training.session.account.digests) == crowd:
                    break
        found = hashlib.sha256()
        for _, value in sorted(model.state_dict().items()):
            found.update(value.numpy().tobytes())
        print(f"weights {found.hexdigest()} after {job.step}", flush=True)


if __name__ == "__main__":
    main()
