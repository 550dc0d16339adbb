"""A process that lends a state in device memory: `python -m tests.job.device.lender HOME RANK MEMORY FRAMEWORK`.

It says what its state's digest is, and waits to be killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from meshmend.base.processes import Identity
from meshmend.job.device.states import LentStates
from meshmend.job.device.trial import memory_called
from meshmend.job.frameworks.base import Framework
from meshmend.job.shm import create_as_agent, home, open_as_worker
from meshmend.job.state.codec import encode

RUN = "lent"


def state_of(framework: str, seed: int, device: str = "cpu") -> Framework:
    """A state of several types and shapes; the same values for the same seed."""
    if framework == "jax":
        return _jax_state(seed)
    return _torch_state(seed, device)


def _jax_state(seed: int) -> Framework:
    import jax.numpy as jnp

    from meshmend.job.frameworks.jax.state import JaxState

    values = np.random.default_rng(seed).normal(size=(37, 5)).astype(np.float32)
    tree: dict[str, Any] = {
        "w": jnp.asarray(values),
        "half": jnp.asarray(values, jnp.bfloat16),
        "count": jnp.asarray(seed, jnp.int32),
        "none": jnp.zeros((0, 3)),
        "here": values[:2].copy(),
    }
    return JaxState(tree)


def _torch_state(seed: int, device: str) -> Framework:
    import torch

    from meshmend.job.frameworks.torch.device import DeviceTorchState

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5)).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(1 + seed):
        model(torch.randn(2, 3, 8, 8, device=device)).square().sum().backward()
        optimizer.step()
    return DeviceTorchState((model, optimizer))


def lend(rank: int, memory: str, framework: str) -> tuple[LentStates, Framework]:
    """Lend a state, as a worker does that is asked for it."""
    create_as_agent(RUN, rank).agent.worker = Identity.of(os.getpid())
    segment = open_as_worker(RUN, rank)
    states = LentStates(segment, memory_called(memory))
    state = state_of(framework, 3, "cuda" if memory.startswith("cuda") else "cpu")
    lent = states.lend(state.leaves(), state.digest())
    segment.files.write_state(encode(state.leaves(), lent, step=7))
    return states, state


def main(folder: str, rank: str, memory: str, framework: str) -> None:
    home.MEMORY = Path(folder)
    _states, state = lend(int(rank), memory, framework)
    print(state.digest(), flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
