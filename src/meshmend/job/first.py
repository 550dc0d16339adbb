"""Loggers and callbacks that are the first worker's, whichever worker that is.

board = mm.on_first(job, lambda: SummaryWriter("board"))
…
board.add_scalar("loss", loss, job.step)       does something on the first worker alone
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class HasFirst(Protocol):
    """A job, as far as this matters."""

    @property
    def first(self) -> bool: ...


class OnFirst:
    """See `on_first`."""

    def __init__(self, job: HasFirst, make: Callable[[], Any]) -> None:
        self._job, self._make = job, make
        self._made: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            if not self._job.first:
                return None
            if not self._made:
                self._made.append(self._make())
            return getattr(self._made[0], name)(*args, **options)

        return call


def on_first(job: HasFirst, make: Callable[[], Any]) -> Any:
    """A logger or a callback whose methods are called on the first worker alone; on others they return None.

    `make` is called where a method is called for the first time: on the first worker and, when that dies, on the next
    one. So what it makes must append: a TensorBoard's `SummaryWriter`, a file opened with "a", a database.
    """
    return OnFirst(job, make)
