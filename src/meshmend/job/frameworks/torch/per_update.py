"""What the body of a wrapped loop calls once per lane, and what must happen once per update.

A worker goes through the loop once for each of its lanes, and once more for each lane of a dead worker. So a schedule,
an average of the weights and a gradient scaler that advanced every time would advance further on some workers than on
others, and their states would differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.swa_utils import AveragedModel

from meshmend.errors import JobError
from meshmend.job.reduction.base import NonFinite


class WrappedLoop(Protocol):
    """A wrapped loop, as far as this matters."""

    updates: int
    updating: bool

    def step(self, closure: None = None, **metrics: Any) -> Any: ...


class OncePerUpdate:
    """A function that takes effect once per update, however many lanes the loop went through for it."""

    def __init__(self, loop: WrappedLoop, function: Callable[..., Any]) -> None:
        self._loop, self._function, self._seen = loop, function, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._seen == self._loop.updates:
            return None
        self._seen = self._loop.updates
        return self._function(*args, **options)


class Scheduler:
    """A scheduler whose `step` takes effect once per update."""

    def __init__(self, loop: WrappedLoop, inner: Any) -> None:
        self._inner, self.step = inner, OncePerUpdate(loop, inner.step)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Scaler:
    """A `GradScaler` that unscales the sum over all lanes, so that every worker finds the same Inf and skips alike."""

    def __init__(self, loop: WrappedLoop, inner: Any) -> None:
        self._loop, self._inner, self.update = loop, inner, OncePerUpdate(loop, inner.update)

    def step(self, optimizer: Any, **metrics: Any) -> Any:
        """The lane is done: the optimizer's `step`, which calls the scaler's own when the sum is there."""
        del optimizer  # the one that was wrapped
        return self._loop.step(**metrics)

    def unscale_(self, optimizer: Any) -> None:
        """Nothing: gradients are unscaled before `after_sum`."""
        del optimizer
        if not self._loop.updating:
            raise JobError(
                "scaler.unscale_ was called before the sum over lanes; a wrapped loop unscales by itself: leave the "
                "call out, and clip in mm.torch.wrap(…, after_sum=clip)"
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def scaler_among(objects: tuple[Any, ...], nonfinite: NonFinite) -> Any:
    """The gradient scaler that was given to `wrap`, if it is in use; it needs sums in which Inf may pass."""
    scaler = next((one for one in objects if isinstance(one, torch.amp.GradScaler) and one.is_enabled()), None)
    if scaler is not None and nonfinite is not NonFinite.PASS:
        raise JobError(
            f"a GradScaler looks for Inf in the gradients, but nonfinite={nonfinite.value!r} lets none through; use "
            'reduction="float" with nonfinite="pass", or bfloat16, which needs no scaler'
        )
    return scaler


def per_update(loop: WrappedLoop, one: Any) -> Any:
    """The object as the loop's body should see it: itself, unless it advances with each call."""
    if isinstance(one, torch.amp.GradScaler):
        return Scaler(loop, one)
    if isinstance(one, AveragedModel):
        setattr(one, "update_parameters", OncePerUpdate(loop, one.update_parameters))  # noqa: B010 (it stays a module)
        return one
    return Scheduler(loop, one) if hasattr(one, "step") else one
