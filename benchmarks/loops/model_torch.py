"""The model of both loops in PyTorch: the same layers and data, one lane per worker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import model as plain
import torch
from torch import nn
from torch.utils.data import TensorDataset


def batch_of(size: int) -> int:
    """Samples of a step, over all workers."""
    return plain.LANES * plain.LANE_SIZE[size]


def dataset() -> TensorDataset:
    """Samples and their classes."""
    return TensorDataset(*map(torch.from_numpy, plain.data()))


def made(size: int, workers: int) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[Any], None]]:
    """(model, optimizer, what computes the gradients of one lane)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    widths = plain.WIDTHS[size]
    layers = [part for n, m in pairwise(widths) for part in (nn.Linear(n, m), nn.ReLU())]
    model = nn.Sequential(*layers[:-1])
    loss_of = nn.CrossEntropyLoss()

    def backward(lane: Any) -> None:
        x, y = lane
        (loss_of(model(x), y) / workers).backward()

    return model, torch.optim.SGD(model.parameters(), lr=plain.RATE), backward
