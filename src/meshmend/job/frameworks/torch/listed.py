"""The listing of shared objects that is made once and kept while it holds.

State dicts have hundreds of entries, and to walk through them takes longer than a device needs for a small step. Their
shape hardly ever changes: between two commits an optimizer changes what its tensors hold and a scheduler some numbers.
So the listing of the last commit is reused if every tensor is the same object in the same memory, which is checked
entry by entry in the dicts that modules and optimizers keep. Numbers (rates, counts) are always read again. Objects
that make their state dicts in their own way (hooks, an overridden method) are listed again every time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from meshmend.job.frameworks.torch.state_dict import Listing, dict_of

Entry = tuple[Any, Any, Any]
"""A dict, a key in it, and what was there."""


class Listed:
    """Every tensor of the shared objects, and everything else as text."""

    def __init__(self, named: Mapping[str, Any], swaps: Mapping[int, Any]) -> None:
        """`swaps` has the tensors that stand for others, by the identity of those."""
        listing = Listing(swaps)
        self._named = dict(named)
        self._texts: dict[str, str] = {}
        self._numbers: dict[str, Callable[[], str]] = {}
        """How the text of an object is made again, for those with numbers that change; the others' stays."""
        self._entries: list[Entry] = []
        self._counts: list[tuple[Any, int]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        """Lists, and what was in them."""
        self.lasting = True
        """Whether the listing can be used again at all."""
        for name, one in named.items():
            before = len(listing.tensors)
            found = listing.described(dict_of(one), name)
            self._texts[name] = _json(found)
            if isinstance(one, torch.nn.Module):
                self._keep_module(one)
            elif isinstance(one, torch.optim.Optimizer):
                self._keep_optimizer(name, one, found)
            elif len(listing.tensors) == before:
                self._numbers[name] = lambda one=one, name=name: _json(Listing({}).described(dict_of(one), name))  # type: ignore[misc]
            else:
                self.lasting = False
        self.tensors = listing.tensors
        """(path, tensor), in a fixed order; the same list as long as this is used."""
        self._seen = [value for _, _, value in self._entries if isinstance(value, torch.Tensor)]
        self._places = [value.data_ptr() for value in self._seen]

    @property
    def text(self) -> npt.NDArray[np.uint8]:
        """Everything that is not a tensor, as it is now."""
        texts = {**self._texts, **{name: make() for name, make in self._numbers.items()}}
        whole = ",".join(f"{json.dumps(name)}:{texts[name]}" for name in self._named)
        return np.frombuffer(f"{{{whole}}}".encode(), np.uint8)

    def holds(self) -> bool:
        """Whether the objects have the same tensors as when it was made, in the same memory, and no others."""
        return (
            self.lasting
            and all(len(one) == count for one, count in self._counts)
            and all([*map(id, one)] == [*map(id, was)] for one, was in self._lists)
            and all([one.get(key) is value for one, key, value in self._entries])  # noqa: C419 (quicker than one by one)
            and [value.data_ptr() for value in self._seen] == self._places  # `parameter.data = …` gives it another one
        )

    def _keep(self, one: Any) -> None:
        self._counts.append((one, len(one)))
        self._entries += [(one, key, value) for key, value in one.items()]

    def _keep_of(self, owner: Any, name: str) -> None:
        """A dict that an object holds, and must keep holding: loading a state replaces some."""
        held = owner.__dict__[name]
        self._entries.append((owner.__dict__, name, held))
        if isinstance(held, dict):
            self._keep(held)

    def _keep_module(self, module: Any) -> None:
        plain = torch.nn.Module
        for one in module.modules():
            kind = type(one)
            own = (
                kind.state_dict is not plain.state_dict
                or kind._save_to_state_dict is not plain._save_to_state_dict
                or kind.get_extra_state is not plain.get_extra_state
                or one._state_dict_hooks
                or one._state_dict_pre_hooks
            )
            self.lasting = self.lasting and not own
            for entries in ("_parameters", "_buffers", "_modules"):
                self._keep_of(one, entries)

    def _keep_optimizer(self, name: str, optimizer: Any, found: Any) -> None:
        plain = type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        hooks = optimizer._optimizer_state_dict_pre_hooks or optimizer._optimizer_state_dict_post_hooks
        held = [value for one in optimizer.state.values() if isinstance(one, dict) for value in one.values()]
        known = all(isinstance(one, dict) for one in optimizer.state.values()) and all(
            isinstance(value, torch.Tensor) or value is None for value in held
        )
        numbers = all(not _has_tensor(value) for group in optimizer.param_groups for value in _rates(group).values())
        self.lasting = self.lasting and plain and not hooks and known and numbers
        if not self.lasting:
            return
        self._keep_of(optimizer, "state")
        for one in optimizer.state.values():
            self._keep(one)
        self._keep_of(optimizer, "param_groups")
        self._lists.append((optimizer.param_groups, [*optimizer.param_groups]))
        for group in optimizer.param_groups:
            self._entries.append((group, "params", group["params"]))
            self._lists.append((group["params"], [*group["params"]]))
        indices = [group["params"] for group in optimizer.state_dict()["param_groups"]]
        rest = {entry[0]: entry[1] for entry in found[1:]}
        after = _json(rest["state"])

        # The numbers of parameters never change, and there are many: they are put into the text as they were.
        rooms = [f"\0{number}" for number in range(len(indices))]
        params = [
            (_json(room), _json(Listing({}).described(which, ""))) for room, which in zip(rooms, indices, strict=True)
        ]

        def text() -> str:
            """As `described` writes a state dict: its two entries in order."""
            groups = [
                {**_rates(group), "params": room} for group, room in zip(optimizer.param_groups, rooms, strict=True)
            ]
            made = _json(Listing({}).described(groups, f"{name}.param_groups"))
            for room, which in params:
                made = made.replace(room, which)
            return f'["dict",["param_groups",{made}],["state",{after}]]'

        if text() == self._texts[name]:
            self._numbers[name] = text
        else:
            self.lasting = False  # it packs its groups in its own way


def _rates(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return isinstance(value, (torch.Tensor, np.ndarray, np.generic, dict))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
