"""An optimizer of PyTorch whose state and updates are divided among the workers, used like `ZeroRedundancyOptimizer`.

    optimizer = mm.torch.ShardedOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    job.share(model, optimizer)
    for step in job.steps(1000):
        loss = job.update(lambda lane: backward(model, lane))     in place of job.sum and optimizer.step
        job.commit(loss=loss / job.batch)

Its groups are those of any optimizer, so that schedulers can change their rates. What it remembers of the parameters is
in slices, each on some of the workers, and its class makes their updates: a slice has a parameter for each tensor that
it has numbers of, in the memory that holds all weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from meshmend.errors import JobError
from meshmend.job.frameworks.elementwise import Apply, Tree
from meshmend.job.reduction.pieces import Pieces

Floats = npt.NDArray[np.float32]
State = dict[str, npt.NDArray[Any]]
BEGUN = "begun"
"""Whether there has been an update: before the first, PyTorch's optimizers remember nothing."""


class ShardedOptimizer(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """An optimizer whose updates are made by `job.update`, or by the `optimizer.step()` of a wrapped loop.

    `kind` is a class of PyTorch (`torch.optim.AdamW`) with its arguments, or an optimizer of slices (`mm.lamb(…)`). It
    must work element by element, which is tried out; with `slices="tensors"` no tensor is cut, for those that look at
    whole ones (Muon). `clip` scales gradients down to this global norm. `buddies` is as for `job.share`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        kind: Any,
        *,
        clip: float | None = None,
        buddies: int | None = None,
        slices: str | None = None,
        **defaults: Any,
    ) -> None:
        self.given = kind if hasattr(kind, "of_slices") else None
        """An optimizer of slices, if that was given in place of a class."""
        if self.given is None and not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise JobError(
                f"mm.torch.ShardedOptimizer got {kind!r}; give a class such as torch.optim.Adam, or mm.lars or mm.lamb"
            )
        if self.given is not None and defaults:
            raise JobError(
                f"mm.torch.ShardedOptimizer got {', '.join(defaults)}= for an optimizer that has been made already; "
                "give them to the optimizer itself"
            )
        self._kind, self._defaults = kind, defaults
        whole = torch.optim.SGD(params, lr=0.0) if self.given is not None else kind(params, **defaults)
        super().__init__(whole.param_groups, whole.defaults)
        self.clip, self.buddies, self.slices = clip, buddies, slices
        self.divisor: np.float32 | None = None
        """What sums are divided by: the number of lanes, in a wrapped loop."""
        self.group_of: Callable[[str], int] = lambda _: 0
        """The group of a parameter, by its name in the shared state."""
        self._inner: dict[int, tuple[Pieces, Any, list[Any]]] = {}
        """For each slice, an optimizer with its parameters."""

    def step(self, closure: Any = None) -> None:
        """The update has been made, with the sum; in a wrapped loop this ends a lane."""
        del closure
        if self.divisor is None:
            raise JobError(
                "optimizer.step() was called, but job.update makes the updates of a ShardedOptimizer; remove the call"
            )

    def init_slice(self, weights: Floats, pieces: Pieces) -> State:
        """What it remembers of a slice at the beginning: nothing, with room for what it will."""
        del weights
        found: State = {BEGUN: np.zeros((), np.int8)}
        for place, piece in enumerate(pieces.pieces):
            size, shape = piece.numbers.stop - piece.numbers.start, self._shape(pieces, place)
            tried = torch.nn.Parameter(torch.zeros(shape if self.slices else (3,)))
            tried.grad = torch.zeros_like(tried)
            made = self._made([tried], [place], pieces)
            made.step()
            for key, value in made.state[tried].items():
                like = isinstance(value, torch.Tensor) and value.shape == tried.shape
                array = np.zeros_like(_array(value))
                found[f"{place}.{key}"] = np.zeros(shape if self.slices else (size,), array.dtype) if like else array
        return found

    def update_slice(self, weights: Floats, gradients: Floats, state: State, pieces: Pieces) -> tuple[Floats, State]:
        """Make the update of a slice, in place."""
        _, made, params = self._of(pieces)
        begun = bool(state[BEGUN])
        for place, (piece, parameter) in enumerate(zip(pieces.pieces, params, strict=True)):
            shape = self._shape(pieces, place)
            parameter.data = torch.from_numpy(weights[piece.numbers]).reshape(shape)
            parameter.grad = torch.from_numpy(gradients[piece.numbers]).reshape(shape)
            group = self.param_groups[self.group_of(piece.name)]
            made.param_groups[place].update({key: value for key, value in group.items() if key != "params"})
            mine = f"{place}."
            if begun:
                made.state[parameter] = {
                    name.removeprefix(mine): torch.from_numpy(array)
                    for name, array in state.items()
                    if name.startswith(mine)
                }
            else:
                made.state.pop(parameter, None)
        made.step()
        found: State = {BEGUN: np.ones((), np.int8)}
        for place, parameter in enumerate(params):
            found |= {f"{place}.{key}": _array(value) for key, value in made.state[parameter].items()}
        return weights, found

    def trial(self) -> Apply:
        """A step of its class, to be tried out on small tensors."""

        def apply(weights: Tree, gradients: Tree, state: Any) -> tuple[Tree, Any]:
            if state is None:
                params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in weights.items()}
                state = params, self._kind([*params.values()], **self._defaults)
            params, made = state
            for name, parameter in params.items():
                parameter.grad = torch.from_numpy(np.array(gradients[name]))
            made.step()
            return {name: parameter.detach().numpy().copy() for name, parameter in params.items()}, state

        return apply

    def _of(self, pieces: Pieces) -> tuple[Pieces, Any, list[Any]]:
        found = self._inner.get(id(pieces))
        if found is None:
            shapes = [one.shape if self.slices else (0,) for one in pieces.pieces]
            params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
            made = self._made(params, range(len(params)), pieces)
            found = self._inner[id(pieces)] = pieces, made, params
        return found

    def _made(self, params: list[Any], places: Iterable[int], pieces: Pieces) -> Any:
        """An optimizer of these parameters, each in a group like the one that its tensor is in."""
        groups = [self.param_groups[self.group_of(pieces.pieces[place].name)] for place in places]
        return self._kind(
            [{**group, "params": [one]} for group, one in zip(groups, params, strict=True)], **self._defaults
        )

    def _shape(self, pieces: Pieces, place: int) -> tuple[int, ...]:
        """The shape in which a piece is updated: that of its tensor if it is whole for sure."""
        return pieces.pieces[place].shape if self.slices else (-1,)


def _array(value: Any) -> npt.NDArray[Any]:
    if not isinstance(value, torch.Tensor):
        raise JobError(
            f"the optimizer keeps a {type(value).__name__} for each parameter, but only tensors can be divided among "
            "workers; use another class, or share the state without mm.torch.ShardedOptimizer"
        )
    found: npt.NDArray[Any] = value.detach().numpy()
    return found
