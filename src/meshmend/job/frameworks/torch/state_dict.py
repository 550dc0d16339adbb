"""State dicts as arrays by name, and everything that is not a tensor (rates, betas, counts) as JSON: no pickle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from meshmend.errors import JobError
from meshmend.job.state.tree import Leaves


class Listing:
    """State dicts as arrays by name, and JSON that says where each one belongs."""

    def __init__(self, swaps: Mapping[int, Any]) -> None:
        self.tensors: list[tuple[str, Any]] = []
        self._swaps = swaps
        self._known: dict[Any, str] = {}
        self._alive: list[Any] = []

    @property
    def leaves(self) -> Leaves:
        """Return the tensors' memory as arrays; copies of tensors that are not on the host."""
        return [(path, array_of(tensor)) for path, tensor in self.tensors]

    def described(self, value: Any, path: str) -> Any:
        """A value as JSON: `["tensor", leaf, type]`, and so on for everything that JSON has no word for."""
        if isinstance(value, torch.Tensor):
            return ["tensor", self._leaf(value, path), str(value.dtype).removeprefix("torch.")]
        if isinstance(value, (np.ndarray, np.generic)):
            return ["array", self._leaf(torch.from_numpy(np.array(value)), path)]
        if isinstance(value, dict):
            # Sorted, so that the order in which two workers came to the same entries does not matter.
            items = sorted(value.items(), key=lambda item: (str(type(item[0])), item[0]))
            kind = "counter" if isinstance(value, Counter) else "dict"
            return [kind, *([self.described(k, path), self.described(v, f"{path}.{k}")] for k, v in items)]
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, *(self.described(one, f"{path}.{number}") for number, one in enumerate(value))]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise JobError(
            f"{path} of the shared state is a {type(value).__name__}, which cannot be sent to another worker; keep "
            "only tensors, numbers, text, lists and dicts in state_dict"
        )

    def _leaf(self, tensor: Any, path: str) -> str:
        tensor = self._swaps.get(id(tensor), tensor).detach()
        self._alive.append(tensor)
        place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if tensor.numel() == 0 or place not in self._known:
            self.tensors.append((path, tensor))
            self._known[place] = path
            return path
        return self._known[place]


def dict_of(one: Any) -> Any:
    """The state dict of an object, with a module's parameters themselves."""
    return one.state_dict(keep_vars=True) if isinstance(one, torch.nn.Module) else one.state_dict()


def tensor_of(array: npt.NDArray[Any], dtype: Any) -> Any:
    """Return a tensor of this type, in new memory: some load_state_dict keep what they are given."""
    found = torch.from_numpy(np.array(array))
    return found if found.dtype == dtype else found.view(dtype)


def restored(value: Any, leaves: Mapping[str, npt.NDArray[Any]], make: Callable[[Any, Any], Any] = tensor_of) -> Any:
    """What a listing described; `make` makes a tensor of a leaf and a type."""
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind == "tensor":
        return make(leaves[rest[0]], getattr(torch, rest[1]))
    if kind == "array":
        return np.array(leaves[rest[0]])[()]
    if kind in ("dict", "counter"):
        made = {restored(key, leaves, make): restored(one, leaves, make) for key, one in rest}
        return Counter(made) if kind == "counter" else made
    made_of = [restored(one, leaves, make) for one in rest]
    return tuple(made_of) if kind == "tuple" else made_of


def array_of(tensor: Any) -> npt.NDArray[Any]:
    """A tensor's memory as numpy sees it; types that numpy lacks appear as integers of the same size."""
    tensor = tensor.to("cpu").contiguous()
    try:
        found: npt.NDArray[Any] = tensor.numpy()
    except TypeError:
        found = tensor.view({1: torch.uint8, 2: torch.uint16}[tensor.element_size()]).numpy()
    return found
