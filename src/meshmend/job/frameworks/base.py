"""States that live in objects which change in place, as PyTorch's models and optimizers do.

A tree of arrays (numpy, JAX) is given anew at each commit. Objects are shared once: `leaves` are the arrays of what was
committed last, by name, and `adopt` takes over those of another worker or of a checkpoint. Names may come and go: an
optimizer has no moments before its first step.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError

Leaves = list[tuple[str, npt.NDArray[Any]]]


class Held(ABC):
    """Objects that hold a state, and how a lane is computed with them."""

    objects: Any
    """The one object, or a tuple of them, as the user shared them."""

    @abstractmethod
    def leaves(self) -> Leaves:
        """The arrays of the state that was committed last; not copies."""

    @abstractmethod
    def adopt(self, leaves: Mapping[str, npt.NDArray[Any]]) -> None:
        """Change the objects so that their leaves are these."""

    @abstractmethod
    def commit(self) -> None:
        """What the objects hold now is the state."""

    @abstractmethod
    def begin(self, key: Sequence[int]) -> None:
        """A lane begins: nothing of the lane before is left, and random numbers depend on the key alone."""

    @abstractmethod
    def end(self, metrics: Any) -> Any:
        """The lane is done: the tree of all that is to be summed."""

    @abstractmethod
    def drop(self) -> None:
        """The lane does not count: as if it had never begun."""

    @abstractmethod
    def take(self, total: Any, lanes: int, *, mean: bool = False) -> Any:
        """Put the sums, or the averages over lanes, where the objects want them; returns those of the metrics."""

    def lane(self, work: Callable[[], Any], key: Sequence[int]) -> Any:
        """One lane from begin to end."""
        self.begin(key)
        return self.end(work())


def held(objects: tuple[Any, ...]) -> Held | None:
    """PyTorch objects as a held state; None for a tree."""
    able = [hasattr(one, "state_dict") and hasattr(one, "load_state_dict") for one in objects]
    if "torch" not in sys.modules or not any(able):
        return None
    if not all(able):
        odd = objects[able.index(False)]
        raise JobError(
            f"a {type(odd).__name__} was shared beside PyTorch objects: give objects with state_dict and "
            "load_state_dict, and warm= by its name"
        )
    from meshmend.job.frameworks.torch import TorchState

    return TorchState(objects)


def rows(data: Any) -> Any:
    """Data that can be asked for several samples at once: PyTorch's datasets give one at a time."""
    if "torch" in sys.modules:
        from meshmend.job.frameworks.torch import Rows, is_dataset

        if is_dataset(data):
            return Rows(data)
    return data


def dtype_of(name: str) -> np.dtype[Any]:
    """The type that a name in a file or a message means; only plain numbers are allowed."""
    found = np.dtype(name)
    if found.kind not in "biufc":
        raise JobError(f"a leaf of type {name!r} came: numbers were expected")
    return found
