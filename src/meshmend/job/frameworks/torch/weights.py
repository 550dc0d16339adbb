"""The weights of a sharded job of PyTorch: all numbers of its parameters, in one flat array.

A round changes that array, and parameters are copied from it. They are no views of it: where in memory a matrix begins
may change the last bits of a product, and a sharded job must have those of the same loop without sharding.

All else that PyTorch's objects hold (buffers, schedules, rates) is the same on all workers, as in any job of PyTorch,
and travels and is digested beside the weights.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from meshmend.errors import JobError
from meshmend.job.frameworks.base import Key
from meshmend.job.frameworks.torch.sharded_optimizer import ShardedOptimizer
from meshmend.job.frameworks.torch.state import TorchState
from meshmend.job.frameworks.weights import Weights
from meshmend.job.state.tree import Leaves


class TorchWeights(Weights):
    """What `job.share(model, mm.torch.ShardedOptimizer(…), …)` holds."""

    def __init__(self, objects: tuple[Any, ...], optimizer: ShardedOptimizer) -> None:
        self._state, self._optimizer = TorchState(objects), optimizer
        self._parameters = self._named(self._state)
        """The trained parameters, by the names of their leaves in the state."""
        groups = {id(one): number for number, group in enumerate(optimizer.param_groups) for one in group["params"]}
        where = {leaf: groups.pop(id(parameter), None) for leaf, parameter in self._parameters.items()}
        for leaf, group in where.items():
            if group is None:
                raise JobError(
                    f"{leaf!r} is trained, but the ShardedOptimizer does not have it; give it all parameters, or "
                    "freeze this one with requires_grad_(False)"
                )
        if groups:
            raise JobError(
                "the ShardedOptimizer has a parameter that is frozen, or in no shared model; give it those that are "
                "trained"
            )
        optimizer.group_of = lambda leaf: where[leaf] or 0
        found = {leaf: parameter.detach().cpu().numpy() for leaf, parameter in self._parameters.items()}
        super().__init__(OrderedDict(found))
        self._rest: Leaves = []
        self._list()

    def _named(self, state: TorchState) -> OrderedDict[str, Any]:
        """The trained parameters by the names of their leaves."""
        leaves = {tensor.data_ptr(): leaf for leaf, tensor in state.listing if tensor.numel()}
        return OrderedDict((leaves.get(one.data_ptr(), name), one) for name, one in state.trained.items())

    def _list(self) -> None:
        """List what is not in the flat array."""
        self._rest = [(leaf, value) for leaf, value in self._state.leaves() if leaf not in self._parameters]

    def average(self, lanes: int) -> None:
        """Divide sums by the number of lanes before they are used."""
        self._optimizer.divisor = torch.tensor(float(lanes)).numpy()[()]

    def _fill(self) -> None:
        """Copy the weights to where the model has them."""
        begin = 0
        with torch.no_grad():
            for parameter in self._parameters.values():
                end = begin + parameter.numel()
                parameter.copy_(torch.from_numpy(self.flat[begin:end]).reshape(parameter.shape))
                begin = end

    @property
    def shared(self) -> Any:
        """The objects that the user shared: they change in place."""
        return self._state.shared

    def extras(self) -> Leaves:
        """All that is not a weight."""
        return self._rest

    def adopt(self, leaves: Leaves, extras: Leaves | None = None) -> None:
        """Take other numbers, and what else another worker or a checkpoint has."""
        super().adopt(leaves)
        self._fill()
        if extras is not None:
            self._state.adopt([*leaves, *extras])
            self._list()

    def commit(self, state: tuple[Any, ...]) -> None:
        """Copy the buffers, which lanes will change, and list what is not a weight."""
        del state  # the objects are known already
        self._state.commit()
        self._list()

    def changed(self) -> str:
        """Which of the shared objects is described in another way now."""
        return self._state.changed()

    def begin(self, key: Key) -> None:
        """A lane begins."""
        self._state.begin(key)

    def end(self, result: Any) -> Any:
        """Gradients by the names of their leaves, and all else that is summed."""
        tree = self._state.end(result)
        grads = OrderedDict(zip(self._parameters, (tree["grads"][name] for name in self._state.trained), strict=True))
        return grads, {name: value for name, value in tree.items() if name != "grads"}

    def drop(self) -> None:
        """Restore the state from before the lane."""
        self._state.drop()

    def take(self, total: Any, lanes: int, *, mean: bool = False) -> Any:
        """The weights are new; buffers move by the mean of their changes. What the function returned is the result."""
        self._state.drop()
        self._fill()
        self._optimizer._opt_called = True  # schedulers warn where they see no call
        (more,) = total
        for leaf, count in zip(self._parameters, more["found"], strict=True):
            if not count > 0:
                raise JobError(
                    f"{leaf!r} got no gradient in any lane of a step, and sharded updates need one for every "
                    "parameter; freeze it with requires_grad_(False), or share without mm.torch.ShardedOptimizer"
                )
        return self._state.taken(more, lanes, mean=mean)
