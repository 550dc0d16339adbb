"""The papers' networks of the benchmark are those that the simulator knows, parameter for parameter."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from meshmend.simulator.step.models import model

FOLDER = Path(__file__).parent.parent / "benchmarks" / "networks"


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script's module; not left behind for other tests."""
    monkeypatch.syspath_prepend(str(FOLDER))
    found = __import__("networks")
    monkeypatch.delitem(sys.modules, "networks")
    return found


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "resnet50", "bert"])
def test_a_network_has_as_many_parameters_as_its_shapes_say(networks: ModuleType, name: str) -> None:
    with torch.device("meta"):  # shapes without memory
        made = networks.NETWORKS[name](networks.PUBLISHED)
    assert sum(value.numel() for value in made.parameters()) == model(name).params


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "resnet50", "bert"])
def test_a_twin_learns(networks: ModuleType, name: str) -> None:
    """All its parameters have gradients, and steps against them lower the loss of the same lane."""
    torch.manual_seed(0)
    twin = networks.NETWORKS[name](networks.TWIN)
    if name == "bert":
        lane = torch.arange(64).reshape(2, 32) * 3 % networks.TWIN.words, torch.tensor([0, 1])
    else:
        lane = torch.randn(4, 3, networks.TWIN.image, networks.TWIN.image), torch.arange(4)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
    twin.loss(*lane).backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in twin.parameters())
    twin.eval()  # no dropout: the same function of the weights before and after
    before = float(twin.loss(*lane).detach())
    for _ in range(5):
        optimizer.zero_grad()
        twin.loss(*lane).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimizer.step()
    assert float(twin.loss(*lane).detach()) < before
