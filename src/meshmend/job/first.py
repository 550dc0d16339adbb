"""Loggers and callbacks that are the first worker's, whichever worker that is.

board = mm.on_first(job, lambda: SummaryWriter("runs/board"))
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
    """An object whose methods are called only on the first worker; it is made at the first call of one of them.

    When the first worker dies, the next one makes its own, with the same `make`: an object that appends (a new file of
    events, a database) continues where the dead worker's stopped. On other workers every method returns None.
    """

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
    """A logger or a callback for the first worker: see `OnFirst`."""
    return OnFirst(job, make)
