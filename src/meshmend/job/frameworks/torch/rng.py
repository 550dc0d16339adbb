"""The random numbers that a lane may draw: PyTorch's, numpy's and Python's, seeded, saved and restored together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch


def seed(key: Sequence[int]) -> None:
    """Seed every generator by this key."""
    found = np.random.SeedSequence(key).generate_state(2, np.uint64)
    _seed_torch(int(found[0] >> 1))
    np.random.seed(int(found[1]) & 0xFFFFFFFF)
    random.seed(int(found[1]))


def _seed_torch(number: int) -> None:
    """As `torch.manual_seed`, which takes 0.2 ms to look for all kinds of devices, in every lane."""
    cuda = torch.cuda.is_initialized()
    if not cuda and not _cpu_alone():
        torch.manual_seed(number)  # it seeds devices that are not in use yet, too
        return
    torch.default_generator.manual_seed(number)
    if cuda:
        for one in torch.cuda.default_generators:
            one.manual_seed(number)


@cache
def _cpu_alone() -> bool:
    """Whether this process has no accelerator that could be used later."""
    return not torch.accelerator.is_available()


def generator(key: Sequence[int]) -> Any:
    """A generator of PyTorch that depends on this key."""
    found = np.random.SeedSequence(key).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(found[0] >> 1))


def states() -> Any:
    """The states of the generators."""
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), on_cuda, np.random.get_state(), random.getstate()


def restore(kept: Any) -> None:
    """Restore the states of the generators, if they were kept."""
    if kept is None:
        return
    ours, on_cuda, numpys, pythons = kept
    torch.set_rng_state(ours)
    if on_cuda is not None:
        torch.cuda.set_rng_state_all(on_cuda)
    np.random.set_state(numpys)
    random.setstate(pythons)
