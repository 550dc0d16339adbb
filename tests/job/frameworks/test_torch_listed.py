"""A listing of PyTorch's objects is used again exactly while it holds, and its text is always that of a new one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from meshmend.job.frameworks.torch.listed import Listed


class Objects:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    @property
    def named(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "steplr": self.scheduler}

    def step(self) -> None:
        self.model(torch.ones(2, 3)).sum().backward()
        self.optimizer.step()

    def load(self) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    def swap_data(self) -> None:
        self.model[0].weight.data = self.model[0].weight.data.clone()

    def swap_buffer(self) -> None:
        self.model[1].running_mean = torch.zeros(4)

    def swap_parameter(self) -> None:
        self.model[2].bias = torch.nn.Parameter(torch.zeros(2))

    def add_module(self) -> None:
        self.model.append(torch.nn.Linear(2, 2))

    def add_group(self) -> None:
        self.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})

    def swap_group(self) -> None:
        self.optimizer.param_groups[0] = {**self.optimizer.param_groups[0]}

    def swap_moment(self) -> None:
        self.optimizer.state[self.model[0].weight]["exp_avg"] = torch.zeros(4, 3)

    def rate(self) -> None:
        self.scheduler.step()

    def change_values(self) -> None:
        with torch.no_grad():
            self.model[0].weight += 1


def begun() -> tuple[Objects, Listed]:
    objects = Objects()
    objects.step()
    return objects, Listed(objects.named, {})


def same(one: Listed, other: Listed) -> bool:
    places = [[(path, tensor.data_ptr(), tensor.shape) for path, tensor in each.tensors] for each in (one, other)]
    return places[0] == places[1]


@pytest.mark.parametrize("change", [Objects.step, Objects.rate, Objects.change_values])
def test_it_is_used_again_while_the_tensors_stay(change: Callable[[Objects], None]) -> None:
    objects, listed = begun()
    change(objects)
    assert listed.holds()
    again = Listed(objects.named, {})
    assert same(listed, again)
    assert listed.text.tobytes() == again.text.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        Objects.load,
        Objects.swap_data,
        Objects.swap_buffer,
        Objects.swap_parameter,
        Objects.add_module,
        Objects.add_group,
        Objects.swap_group,
        Objects.swap_moment,
    ],
)
def test_it_is_made_anew_where_a_tensor_is_another(change: Callable[[Objects], None]) -> None:
    objects, listed = begun()
    change(objects)
    assert not listed.holds()


def test_the_first_update_gives_the_optimizer_its_tensors() -> None:
    objects = Objects()
    listed = Listed(objects.named, {})
    assert listed.holds()
    objects.step()
    assert not listed.holds()
    assert len(Listed(objects.named, {}).tensors) == len(listed.tensors) + 3 * 6


def test_objects_with_state_dicts_of_their_own_are_listed_every_time() -> None:
    class Extra(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return {"seen": 3}

    class Own(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "more": 1}

    hooked = torch.nn.Linear(2, 2)
    hooked.register_state_dict_post_hook(lambda *_: None)
    rated = torch.optim.SGD(hooked.parameters(), lr=torch.tensor(0.1))
    for one in (Extra(2, 2), Own(torch.nn.Linear(2, 2).parameters(), lr=0.1), hooked, rated):
        assert not Listed({"one": one}, {}).lasting
