"""PyTorch's models, optimizers and schedulers as a job's state, and a lane as PyTorch computes it.

A lane gives the same result on every worker, and whatever that worker computed before it: it begins with no gradients,
with the buffers (batch-norm statistics) of the last commit, and with random numbers that depend on seed, step and lane.
What is summed over lanes is

    grads      of every parameter, zeros where this lane gave it none
    found      1 for each parameter that has a gradient: where no lane has one, `.grad` is None on every worker
    buffers    how much the lane changed them: each moves by the mean of the lanes' changes
    metrics    what the function returned
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.swa_utils import AveragedModel

from meshmend.base.schema import loads
from meshmend.errors import FormatError, JobError
from meshmend.job.frameworks.arrays import leaves_of, rebuilt
from meshmend.job.frameworks.base import OBJECTS, Accumulator, Framework, HostAccumulator, Key
from meshmend.job.frameworks.torch import rng
from meshmend.job.frameworks.torch.state_dict import Listing, dict_of, restored, tensor_of
from meshmend.job.reduction.base import Reduction
from meshmend.job.reduction.layout import Rooms
from meshmend.job.state.kinds import Kinds
from meshmend.job.state.tree import Leaves


class TorchState(Framework):
    """What `job.share(model, optimizer, …)` holds; at least one of the objects is a module."""

    def __init__(self, objects: tuple[Any, ...]) -> None:
        self._objects = objects
        self._named = dict(zip(_names(objects), objects, strict=True))
        modules = {name: one for name, one in self._named.items() if isinstance(one, torch.nn.Module)}
        if not modules:
            raise JobError(f"job.share got {', '.join(self._named)} without a model; share the torch.nn.Module too")
        # Tied weights are one parameter with two names: the first name stands for both.
        self._every: dict[str, Any] = {}
        self._buffers: dict[str, tuple[Any, str]] = {}
        self._constants: dict[str, tuple[Any, str]] = {}
        self._fixed: list[str] = []
        seen: set[int] = set()
        for name, module in modules.items():
            persistent = set(module.state_dict(keep_vars=True))
            for path, value in [*module.named_parameters(), *module.named_buffers()]:
                if id(value) in seen:
                    continue
                seen.add(id(value))
                where, _, key = path.rpartition(".")
                if isinstance(value, torch.nn.Parameter):
                    self._every[f"{name}.{path}"] = value
                elif self._leaves_alone(module.get_submodule(where), key):
                    continue
                elif path in persistent and value.dtype != torch.bool and not value.is_complex():
                    self._buffers[f"{name}.{path}"] = module.get_submodule(where), key
                else:
                    self._constants[f"{name}.{path}"] = module.get_submodule(where), key
                    if path in persistent or value.dtype == torch.bool:
                        self._fixed.append(f"{name}.{path}")
        _check_optimizers(self._named, self._every)
        averages = [one for one in modules.values() if isinstance(one, AveragedModel)]  # have no gradients, ever
        fixed = {id(value) for one in averages for value in one.parameters()}
        self._trained = [n for n, value in self._every.items() if value.requires_grad and id(value) not in fixed]
        for name in self._trained:
            if self._every[name].is_complex():
                raise JobError(f"{name!r} is complex, and complex gradients cannot be summed; use two real parameters")
        self.trained = {name: self._every[name] for name in self._trained}
        """The parameters that have gradients, by name."""
        self.listing: list[tuple[str, Any]] = []
        """The tensors of all state dicts, as of the last commit, by the names of their leaves."""
        self._shared = Kinds([*self._every.items()])  # an optimizer's state grows in the first step
        self._generators: Any = None
        self._tensors: dict[tuple[str, ...], list[bool]] = {}
        """Which of the things that a lane function returned were tensors, by the names of all."""
        self._kept: dict[str, Any] = {}
        self._leaves: Leaves = []
        self.commit()

    @staticmethod
    def _leaves_alone(owner: Any, key: str) -> bool:
        """Whether lanes have nothing to do with this buffer: then it is part of the state, and that is all."""
        del owner, key
        return False

    @property
    def shared(self) -> Any:
        """The objects that the user shared: they change in place."""
        return self._objects if len(self._objects) > 1 else self._objects[0]

    def commit(self, state: tuple[Any, ...] = ()) -> None:
        """Copy the buffers, which lanes will change, and list the arrays."""
        del state  # the objects are known already
        self._shared.check([*self._every.items()])
        self._kept = {name: value.detach().clone() for name, value in self._live().items()}
        listing = Listing(self._swaps())
        rest = {name: listing.described(dict_of(one), name) for name, one in self._named.items()}
        self.listing = listing.tensors
        text = np.frombuffer(json.dumps(rest, separators=(",", ":")).encode(), np.uint8)
        self._leaves = [*listing.leaves, (OBJECTS, text)]

    def changed(self) -> str:
        """The first object that is described in another way now: a schedule that has advanced, a rate."""
        committed, listing = json.loads(bytes(dict(self.leaves())[OBJECTS])), Listing(self._swaps())
        now = {name: listing.described(dict_of(one), name) for name, one in self._named.items()}
        return next((name for name in now if json.dumps(now[name]) != json.dumps(committed[name])), "")

    def _swaps(self) -> dict[int, Any]:
        """The copies of the buffers, by the identity of the buffers that they stand for."""
        return {id(value): self._kept[name] for name, value in self._live().items()}

    def leaves(self) -> Leaves:
        """The parameters themselves, and copies of the buffers: other threads may read them while a lane runs."""
        return self._leaves

    def adopt(self, leaves: Leaves) -> None:
        """Load state dicts made of these arrays, and check that they arrived."""
        arrays = dict(leaves)
        rest = loads(bytes(arrays[OBJECTS])) if OBJECTS in arrays else None
        if not isinstance(rest, dict):
            raise FormatError(f"received a state without {OBJECTS!r}: it was not written by a script that uses PyTorch")
        if rest.keys() != self._named.keys():
            raise JobError(
                f"received a state of {', '.join(rest)}, but this worker shares {', '.join(self._named)}; run the same "
                "script on all workers"
            )
        for name, one in self._named.items():
            try:
                found = restored(rest[name], arrays, self._tensor)
                if isinstance(one, torch.nn.Module):
                    found = OrderedDict(found)
                    setattr(found, "_metadata", getattr(one.state_dict(), "_metadata", {}))  # noqa: B010
                one.load_state_dict(found)
            except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
                why = " ".join(str(error).split())  # PyTorch tells it in several lines
                raise JobError(
                    f"the received {name} does not fit this worker's ({why}); run the same script on all workers"
                ) from error
        self.commit()
        for name, mine in self.leaves():
            if name not in arrays or not self._equal(mine, arrays[name]):
                raise JobError(f"{name!r} changed in load_state_dict; its class must load exactly what it saves")

    def _tensor(self, leaf: Any, dtype: Any) -> Any:
        """A tensor of a leaf that has been received."""
        return tensor_of(leaf, dtype)

    def _equal(self, mine: Any, received: Any) -> bool:
        """Whether a leaf has the bits that have been received."""
        return bool(np.asarray(mine).tobytes() == np.asarray(received).tobytes())

    def leaves_of(self, tree: Any) -> list[tuple[str, Any]]:
        """The leaves of what `end` returned."""
        return leaves_of(tree)

    def rebuilt(self, tree: Any, values: Sequence[Any]) -> Any:
        """A tree of the same shape with other leaves."""
        return rebuilt(tree, values)

    def accumulator(self, kind: type[Reduction], tree: Any, lanes: int) -> Accumulator:
        """The accumulator for lanes like this first one; its sums take the place of the last lane's gradients."""
        return HostAccumulator(self, kind, tree, lanes, _own_gradients)

    def begin(self, key: Key) -> None:
        """No gradients, the buffers of the last commit or sum, and random numbers of this lane's own."""
        self._clear()
        if self._generators is None:
            self._generators = rng.states()
        rng.seed(key)

    def end(self, result: Any) -> Any:
        """The lane's tree; the user's random numbers continue where they were."""
        rng.restore(self._generators)
        self._generators = None
        check_frozen(self._every, self._trained)
        grads = {name: self._every[name].grad for name in self._trained}
        live = self._live()
        changes = {name: _change(live[name].detach(), self._kept[name]) for name in self._buffers}
        for name in self._fixed:
            if not torch.equal(live[name], self._kept[name]):
                raise without_mean(name, self._kept[name])
        found = leaves_of(result)
        self._tensors[tuple(name for name, _ in found)] = [isinstance(value, torch.Tensor) for _, value in found]
        values = [_metric(value) for _, value in found]
        return {
            "grads": {name: _grad(grads[name], self._every[name]) for name in self._trained},
            "found": np.array([grads[name] is not None for name in self._trained], np.float32),
            "buffers": {name: change.to("cpu").numpy() for name, change in changes.items()},
            "metrics": rebuilt(result, values),
        }

    def drop(self) -> None:
        """Restore the state from before the lane."""
        self._clear()
        rng.restore(self._generators)
        self._generators = None

    def take(self, total: Any, lanes: int, *, mean: bool = False) -> Any:
        """Fill `.grad`, and move each buffer by the mean of its changes."""
        self._clear()
        divisor = np.float32(lanes)
        for name, count in zip(self._trained, total["found"], strict=True):
            parameter = self._every[name]
            if count > 0:
                grad = total["grads"][name]
                if mean:
                    np.divide(grad, divisor, out=grad)
                parameter.grad = torch.from_numpy(grad).to(parameter.device, parameter.dtype)
        return self.taken(total, lanes, mean=mean)

    def taken(self, total: Any, lanes: int, *, mean: bool) -> Any:
        """The same but for the gradients."""
        divisor, live = np.float32(lanes), self._live()
        with torch.no_grad():
            for name in self._buffers:
                old, change = live[name], torch.from_numpy(np.asarray(total["buffers"][name] / divisor))
                change = (change if old.is_floating_point() else change.round()).to(old.device, old.dtype)
                old.copy_(torch.where(change == 0, old, old + change))  # -0.0 + 0.0 would be 0.0
        self._kept.update({name: live[name].detach().clone() for name in self._buffers})
        found = leaves_of(total["metrics"])
        values = [np.asarray(value / divisor) if mean else value for _, value in found]
        were = self._tensors[tuple(name for name, _ in found)]
        values = [torch.from_numpy(v) if was else v for v, was in zip(values, were, strict=True)]
        return rebuilt(total["metrics"], values)

    def _live(self) -> dict[str, Any]:
        """The buffers that modules hold now: some modules replace the tensor."""
        return {name: one._buffers[key] for name, (one, key) in {**self._buffers, **self._constants}.items()}

    def _clear(self) -> None:
        for parameter in self._every.values():
            parameter.grad = None
        with torch.no_grad():
            for name, value in self._live().items():
                value.copy_(self._kept[name])


def _check_optimizers(objects: Mapping[str, Any], every: Mapping[str, Any]) -> None:
    known = {id(value) for value in every.values()}
    for name, one in objects.items():
        if isinstance(one, torch.optim.Optimizer) and any(
            id(value) not in known for group in one.param_groups for value in group["params"]
        ):
            raise JobError(f"{name} has parameters that are in no shared model; share the model that holds them")


def check_frozen(every: Mapping[str, Any], trained: Sequence[str]) -> None:
    """Refuse a gradient that would not be summed."""
    known = {*trained} if len(trained) < len(every) else every.keys()
    odd = [name for name, value in every.items() if name not in known and value.grad is not None]
    if odd:
        raise JobError(f"{odd[0]!r} was frozen when it was shared, but has a gradient; share it with requires_grad")


def without_mean(name: str, buffer: Any) -> JobError:
    """What to say where a lane changed a buffer whose changes cannot be averaged."""
    kind = "truth values" if buffer.dtype == torch.bool else "complex numbers"
    return JobError(f"a lane changed buffer {name!r} of {kind}, which has no mean; make it a float buffer")


def _names(objects: tuple[Any, ...]) -> list[str]:
    names: list[str] = []
    for one in objects:
        kinds = {"model": torch.nn.Module, "optimizer": torch.optim.Optimizer}
        name = next((name for name, kind in kinds.items() if isinstance(one, kind)), type(one).__name__.lower())
        same = sum(other.rstrip("0123456789") == name for other in names)
        names.append(f"{name}{same + 1}" if same else name)
    return names


def _change(live: Any, kept: Any) -> Any:
    """Return how much a lane changed a buffer: exactly 0 where it is the same, even if that is Inf or NaN."""
    if not live.is_floating_point():
        return live.to(torch.int64) - kept.to(torch.int64)
    same = (live == kept) | (live.isnan() & kept.isnan())
    return torch.where(same, 0.0, live - kept).to(torch.float32)


def _grad(grad: Any, parameter: Any) -> npt.NDArray[Any]:
    if grad is None:
        return np.zeros(parameter.shape, np.float32)
    dense = grad.detach().to_dense() if grad.is_sparse else grad.detach()
    found: npt.NDArray[Any] = dense.to("cpu", torch.float32).numpy()
    return found


def _own_gradients(tree: Any) -> Rooms:
    """The memory of the lane's own gradients, as with DDP: new memory for every sum would have to be paged in.

    Not where one gradient shares memory with another.
    """
    found = [value if name.startswith("grads.") else None for name, value in leaves_of(tree)]
    grads = sorted((value for value in found if value is not None and value.size), key=_address)
    apart = all(_address(one) + one.nbytes <= _address(other) for one, other in pairwise(grads))
    return found if apart and all(value.flags.c_contiguous and value.flags.writeable for value in grads) else ()


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _metric(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    found = value.detach().to("cpu")
    return found.to(torch.float32).numpy() if found.is_floating_point() else found.numpy()
