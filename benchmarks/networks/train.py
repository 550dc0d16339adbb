"""Some steps of one of the networks under `meshmend run`, on images or texts made here.

meshmend run -n 4 benchmarks/networks/train.py resnet50 6 [--twin] [--float] [--cuda]

With `--cuda`, the network lives on the card, where lanes are larger.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # a card's sums are in an order of their own, else

import numpy as np
import torch
from networks import CLASSES, NETWORKS, PUBLISHED, TWIN

import meshmend as mm

LANES = {"alexnet": 8, "googlenet": 8, "resnet50": 8, "bert": 2}
LANE_SIZE = {"alexnet": 2, "googlenet": 2, "resnet50": 2, "bert": 1}
"""Two images are the fewest that batch norm takes."""
ON_CARD = 16
"""A card takes lanes that are so many times as large."""
SAMPLES = 2048
RATE = {"alexnet": 0.01, "googlenet": 0.01, "resnet50": 0.05, "bert": 0.001}


class Made:
    """Samples by their numbers: an image is noise around the colours of its class, a text walks through the words."""

    def __init__(self, name: str, size: Any) -> None:
        self._size, self._text = size, name == "bert"

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, ids: Any) -> tuple[torch.Tensor, torch.Tensor]:
        labels = np.asarray(ids) * 7919 % CLASSES
        found = np.stack([self._one(int(one), int(label)) for one, label in zip(ids, labels, strict=True)])
        return torch.from_numpy(found), torch.from_numpy(labels)

    def _one(self, number: int, label: int) -> Any:
        random = np.random.default_rng(number)
        if self._text:
            strides = random.integers(1, 5, self._size.tokens)
            return (label + np.cumsum(strides)) % self._size.words
        colours = np.random.default_rng(label).normal(size=(3, 1, 1)).astype(np.float32)
        return random.normal(size=(3, self._size.image, self._size.image)).astype(np.float32) + colours


def main(name: str, steps: int, *options: str) -> None:
    size = TWIN if "--twin" in options else PUBLISHED
    device = torch.device("cuda" if "--cuda" in options else "cpu")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    model = NETWORKS[name](size).to(device)
    # BERT-large without momentum: two workers must fit into a small machine.
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE[name], momentum=0.0 if name == "bert" else 0.9)
    lanes, ended = 8 if size is TWIN else LANES[name], 0.0

    def backward(lane: Any) -> torch.Tensor:
        nonlocal ended
        loss = model.loss(*(column.to(device) for column in lane)) / batch
        loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()  # what comes after it is the sum
        ended = time.perf_counter()
        return loss.detach()

    batch = lanes * LANE_SIZE[name] * (ON_CARD if device.type == "cuda" else 1)
    reduction = "float" if "--float" in options else "exact"
    with mm.Job(Made(name, size), batch=batch, lanes=lanes, reduction=reduction, check=False) as job:
        job.share(model, optimizer)
        for _ in job.steps(steps):
            loss = job.sum(backward)
            summed = time.perf_counter() - ended
            optimizer.step()
            job.commit(loss=loss, summed=summed)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
