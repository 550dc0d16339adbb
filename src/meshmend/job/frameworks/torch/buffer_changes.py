"""How lanes change a model's buffers (batch-norm statistics) on an accelerator, without waiting for it.

Each buffer moves by the mean of the lanes' changes, as in `state.py`. Here all buffers of a type are concatenated in
one tensor: a few operations per type, not a few per buffer. And what a lane must not do (change a boolean buffer, move
an integer by more than a float32 holds) is checked on the device, and reported one step later.

`live` are the buffers that the modules hold now, and `kept` those of the last commit, both by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from meshmend.errors import JobError
from meshmend.job.frameworks.torch.host import array_begun
from meshmend.job.reduction.layout import WHOLE

Buffers = dict[str, Any]
"""Tensors by the names of buffers."""


class BufferChanges:
    """The changes of some buffers; `changed` says whether others changed, whose change has no mean."""

    def __init__(self, summed: Sequence[str], fixed: Sequence[str], changed: Callable[[str], JobError]) -> None:
        self._summed, self._fixed, self._changed = summed, fixed, changed
        self.lanes = 1
        """How many lanes a step has."""
        self._doubts: list[Any] = []
        """For each lane of this step, whether it did what it must not do: numbers on the device."""
        self._told: tuple[list[str], Callable[[], npt.NDArray[Any]]] | None = None
        """The same of the last step: what each number is about, and how to get them."""

    def of_lane(self, live: Buffers, kept: Buffers) -> Buffers:
        """How much a lane has changed each buffer."""
        changes: Buffers = {}
        for names in self._kinds(kept).values():
            changes |= _parts(self._change(_flat(live, names), _flat(kept, names)), kept, names)
        if self._fixed:
            self._doubts.append(torch.stack([(live[name] != kept[name]).any() for name in self._fixed]).float())
        return changes

    def _change(self, live: Any, kept: Any) -> Any:
        """The same of buffers of a type: as `_change` of `state.py`."""
        if not live.is_floating_point():
            change = (live.to(torch.int64) - kept.to(torch.int64)).to(torch.float32)
            self._doubts.append((change.abs().amax() > WHOLE // self.lanes).float().reshape(1))
            return change
        same = (live == kept) | (live.isnan() & kept.isnan())
        return torch.where(same, 0.0, live - kept).to(torch.float32)

    def move(self, live: Buffers, kept: Buffers, total: Buffers, divisor: Any) -> None:
        """Move each buffer, and what is kept of it, by the mean of its changes."""
        for names in self._kinds(kept).values():
            old, change = _flat(live, names), _flat(total, names) / divisor
            change = (change if old.is_floating_point() else change.round()).to(old.dtype)
            new = [*_parts(torch.where(change == 0, old, old + change), kept, names).values()]  # -0.0 + 0.0 is 0.0
            copy_all([live[name] for name in names], new)
            copy_all([kept[name] for name in names], new)

    def tell(self, kept: Buffers) -> None:
        """Raise what a lane of the last step did that it must not do, and ask the same about this step."""
        if self._told is not None:
            (names, fetch), self._told = self._told, None
            for name, doubt in zip(names, fetch(), strict=True):
                if doubt and name in self._fixed:
                    raise self._changed(name)
                if doubt:
                    raise JobError(
                        f"a lane changed an integer buffer ({name}) by more than {WHOLE // self.lanes}, so its mean "
                        "would not be exact; make it a float buffer"
                    )
        if self._doubts:
            whole = [names[0] for kind, names in self._kinds(kept).items() if not kind.is_floating_point]
            names = [*whole, *self._fixed]
            each = torch.cat(self._doubts).view(-1, len(names)).amax(dim=0)
            self._told = names, array_begun(each)
        self.forget()

    def forget(self) -> None:
        """Leave out what lanes have done since the last step."""
        self._doubts = []

    def _kinds(self, kept: Buffers) -> dict[Any, list[str]]:
        """The buffers that are summed, by their type."""
        found: dict[Any, list[str]] = {}
        for name in self._summed:
            found.setdefault(kept[name].dtype, []).append(name)
        return found


def copy_all(to: list[Any], values: list[Any]) -> None:
    """Copy many tensors at once."""
    if to:
        torch._foreach_copy_(to, values)


def _flat(tensors: Buffers, names: list[str]) -> Any:
    return torch.cat([tensors[name].detach().reshape(-1) for name in names])


def _parts(flat: Any, kept: Buffers, names: list[str]) -> Buffers:
    """Values of these buffers, given one after another."""
    shapes = [kept[name].shape for name in names]
    parts = flat.split([shape.numel() for shape in shapes])
    return {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
