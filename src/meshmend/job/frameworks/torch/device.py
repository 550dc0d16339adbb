"""PyTorch's objects as a job's state, for a model on an accelerator: nothing of it is copied to the host.

As `state.py`, with these differences, all of them so that the processor never waits for the device within a step:

* gradients stay tensors; those of a world of one are the very tensors that `backward` made;
* the changes of buffers are handled together, and illegal ones are reported one step later (`buffer_changes.py`);
* a commit keeps the buffers in the same memory, and lists the tensors, which are fetched on first access.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.swa_utils import AveragedModel

from meshmend.job.frameworks.arrays import leaves_of, rebuilt
from meshmend.job.frameworks.base import OBJECTS, Accumulator
from meshmend.job.frameworks.torch import rng
from meshmend.job.frameworks.torch.buffer_changes import BufferChanges, copy_all
from meshmend.job.frameworks.torch.digest import Digester
from meshmend.job.frameworks.torch.host import HostCopier, array_begun, borrowed, numpy_type
from meshmend.job.frameworks.torch.listed import Listed
from meshmend.job.frameworks.torch.state import TorchState, check_frozen, without_mean
from meshmend.job.frameworks.torch.state_dict import array_of
from meshmend.job.frameworks.torch.sums import TorchSums
from meshmend.job.reduction.base import Reduction
from meshmend.job.state.digest import Facts, Later, finished, opening
from meshmend.job.state.tree import Leaves, OnDevice


def devices_of(objects: Iterable[Any]) -> set[Any]:
    """The devices of the parameters and buffers of all modules among these objects, counts of averages aside."""
    modules = [one for one in objects if isinstance(one, torch.nn.Module)]
    buffers = [
        value
        for one in modules
        for owner in one.modules()
        for key, value in owner.named_buffers(recurse=False)
        if not counts(owner, key)
    ]
    return {value.device for value in (*(value for one in modules for value in one.parameters()), *buffers)}


def counts(owner: Any, key: str) -> bool:
    """Whether a buffer counts how often an average has been updated: PyTorch keeps that on the host."""
    return isinstance(owner, AveragedModel) and key == "n_averaged"


class DeviceTorchState(TorchState):
    """What `job.share(model, optimizer, …)` holds, all of it on one device but small things of the optimizer's."""

    def __init__(self, objects: tuple[Any, ...]) -> None:
        [self._where] = devices_of(objects)
        self.device = str(self._where)
        if self._where.type == "cuda" and torch.version.hip is None:
            self.cuda = torch.cuda.current_device() if self._where.index is None else self._where.index
        self._copies, self._digester = HostCopier(self._where), Digester(self._where)
        self._opening: tuple[Any, int] = (None, 0)
        self._list: Listed | None = None
        self._digested: list[Any] = []
        super().__init__(objects)
        self._changes = BufferChanges([*self._buffers], self._fixed, lambda name: without_mean(name, self._kept[name]))

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def commit(self, state: tuple[Any, ...] = ()) -> None:
        """Copy the buffers, which lanes will change, and list the tensors."""
        del state
        self._shared.check([*self._every.items()])
        live = {name: value.detach() for name, value in self._live().items()}
        same = {name: (value.shape, value.dtype) for name, value in live.items()}
        if same == {name: (value.shape, value.dtype) for name, value in self._kept.items()}:
            copy_all([*self._kept.values()], [*live.values()])
        else:
            self._kept = {name: value.clone() for name, value in live.items()}
            self._list = None
        if self._list is None or not self._list.holds():
            self._list = Listed(self._named, self._swaps())
        self._listing, self._text = self._list.tensors, self._list.text
        self._copies.mark()

    @staticmethod
    def _leaves_alone(owner: Any, key: str) -> bool:
        """Averages are updated between lanes."""
        return counts(owner, key)

    def leaves(self) -> Leaves:
        """Return the tensors, which are fetched on first access: other threads may do that while a lane runs."""
        found: Leaves = [(path, self._leaf(tensor)) for path, tensor in self._listing]
        return [*found, (OBJECTS, self._text)]

    def _leaf(self, tensor: Any) -> Any:
        if tensor.device != self._where:
            return array_of(tensor)
        facts = tuple(tensor.shape), numpy_type(tensor.dtype)
        return OnDevice(*facts, lambda: self._copies.array(tensor), lambda: self._copies.lying(tensor))

    def _tensor(self, leaf: Any, dtype: Any) -> Any:
        """What was lent in device memory is copied there."""
        lent = isinstance(leaf, OnDevice) and leaf.into is not None
        return borrowed(leaf, dtype, self._where) if lent else super()._tensor(leaf, dtype)

    def _equal(self, mine: Any, received: Any) -> bool:
        """The same for two leaves that are both on the device."""
        if not isinstance(mine, OnDevice) or mine.lies is None or not isinstance(received, OnDevice):
            return super()._equal(mine, received)
        _, tensor = mine.lies()
        other = borrowed(received, tensor.dtype, self._where)
        return bool(torch.equal(tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))

    def snapshot(self) -> Leaves:
        """Copies on the device, to be fetched in the background; on the host where the device has no room."""
        if not self._has_room():
            return [(name, np.array(value, order="C")) for name, value in self.leaves()]
        kept = [(path, tensor.detach().clone()) for path, tensor in self._listing]
        self._copies.mark()
        found: Leaves = [(path, self._leaf(tensor)) for path, tensor in kept]
        return [*found, (OBJECTS, self._text)]

    def _has_room(self) -> bool:
        """For a second state, twice over: it must not be the reason why a step finds no memory."""
        if self._where.type != "cuda":
            return True
        size = sum(tensor.numel() * tensor.element_size() for _, tensor in self._listing)
        return bool(torch.cuda.mem_get_info(self._where)[0] > 2 * size)

    def digest(self, *more: npt.NDArray[Any]) -> int:
        """A hash of the state, and of other arrays that belong to it."""
        return self.digest_begun(*more).value()

    def digest_begun(self, *more: npt.NDArray[Any]) -> Later[int]:
        """Have the device compute it in parallel with the next step's work."""
        if self._opening[0] is not self._listing:
            facts = [
                Facts(path, str(one.dtype).removeprefix("torch."), tuple(one.shape)) for path, one in self._listing
            ]
            self._opening = self._listing, opening(facts)
            self._digested = [tensor for _, tensor in self._listing]
        number, text = self._opening[1], self._text
        fetch = self._digester.begin(self._digested)
        return Later(lambda: finished(number, fetch(), (text, *more)))

    def number_begun(self, value: Any) -> Later[float] | None:
        """A number on the device is fetched later."""
        if not isinstance(value, torch.Tensor) or value.device != self._where or value.numel() != 1:
            return None
        fetch = array_begun(value.detach().to(torch.float64).reshape(()))
        return Later(lambda: float(fetch()))

    def host(self, value: Any) -> npt.NDArray[Any]:
        """A leaf of a lane's tree, on the host."""
        return array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def end(self, result: Any) -> Any:
        """The lane's tree, on the device; the user's random numbers continue where they were."""
        rng.restore(self._generators)
        self._generators = None
        check_frozen(self._every, self._trained)
        grads = [self._every[name].grad for name in self._trained]
        changes = self._changes.of_lane(self._live(), self._kept)
        found = leaves_of(result)
        self._tensors[tuple(name for name, _ in found)] = [isinstance(value, torch.Tensor) for _, value in found]
        shaped = zip(self._trained, grads, strict=True)
        return {
            "grads": {name: _float32(grad, self._every[name]) for name, grad in shaped},
            "found": np.array([grad is not None for grad in grads], np.float32),
            "buffers": changes,
            "metrics": rebuilt(result, [self._metric(value) for _, value in found]),
        }

    def _metric(self, value: Any) -> Any:
        """A number of its own: the sum is made in its place."""
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach().to(self._where, copy=True)
        return value.to(torch.float32) if value.is_floating_point() else value

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def take(self, total: Any, lanes: int, *, mean: bool = False) -> Any:
        """Fill `.grad`, and move each buffer by the mean of its changes."""
        self._clear()
        self._changes.tell(self._kept)
        # A tensor: a number of Python would be multiplied by its reciprocal.
        divisor = torch.full((), float(lanes), device=self._where)
        given = [name for name, count in zip(self._trained, total["found"], strict=True) if count > 0]
        grads = [total["grads"][name] for name in given]
        if mean and grads:
            torch._foreach_div_(grads, divisor)
        for name, grad in zip(given, grads, strict=True):
            parameter = self._every[name]
            parameter.grad = grad if grad.dtype == parameter.dtype else grad.to(parameter.dtype)
        self._changes.move(self._live(), self._kept, total["buffers"], divisor)
        values = [_mean(value, divisor, lanes) if mean else value for _, value in leaves_of(total["metrics"])]
        return rebuilt(total["metrics"], values)

    def drop(self) -> None:
        """Restore the state from before the lane."""
        super().drop()
        self._changes.forget()

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def _clear(self) -> None:
        for parameter in self._every.values():
            parameter.grad = None
        live = self._live()
        copy_all([*live.values()], [self._kept[name] for name in live])

    def accumulator(self, kind: type[Reduction], tree: Any, lanes: int) -> Accumulator:
        """Adds up lanes on the device."""
        self._changes.lanes = lanes
        return TorchSums(kind, tree, lanes, self._where)


def _float32(grad: Any, parameter: Any) -> Any:
    if grad is None:
        return torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
    if grad.dtype is torch.float32 and grad.layout is torch.strided and not grad.requires_grad:
        return grad
    dense = grad.detach().to_dense() if grad.is_sparse else grad.detach()
    return dense.to(torch.float32)


def _mean(value: Any, divisor: Any, lanes: int) -> Any:
    return value / divisor if isinstance(value, torch.Tensor) else np.asarray(value / np.float32(lanes))
