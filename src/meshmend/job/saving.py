"""What a worker saves of a job, and with whom: checkpoints that all wait for, and those of somebody who has to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshmend.errors import MeshmendError
from meshmend.job.checkpoints import Checkpoints
from meshmend.job.frameworks.base import Framework
from meshmend.job.ledger import StepLedger
from meshmend.job.session import WorkerSession
from meshmend.job.solo import Solo

State = tuple[Framework, int, dict[str, Any]]
"""What holds the state, how many steps are committed, and what a checkpoint says about its job."""


class Saver:
    """Writes the last committed state, which `state` gives; None before there is one."""

    def __init__(self, checkpoints: Checkpoints, ledger: StepLedger, state: Callable[[], State | None]) -> None:
        self._checkpoints, self._ledger, self._state = checkpoints, ledger, state

    def now(self, name: str = "", metrics: Mapping[str, float] | None = None) -> bool:
        """Write a checkpoint, with these numbers; whether that succeeded."""
        found = self._state()
        if found is None:
            return True
        framework, step, about = found
        return self._checkpoints.now(framework, step, {**about, "metrics": dict(metrics)} if metrics else about, name)

    def halted(self) -> bool:
        """The run is halted, and this worker ends; whether the state is saved."""
        self._ledger.confirm()
        return self.now()

    def together(
        self, session: WorkerSession | Solo, rank: int, name: str = "", metrics: Mapping[str, float] | None = None
    ) -> None:
        """Have the first worker write a checkpoint while the others wait; if it dies, the next one does.

        The round before it has shown that all have the same state.
        """
        saved = False
        while True:
            found = session.exchange(b"saved" if saved else b"")
            self._ledger.confirm()
            if found[min(found)]:
                return
            if min(found) == rank:
                with session.waits_for_room():
                    self.now(name, metrics)
                saved = True

    def after_error(self, session: WorkerSession | Solo) -> None:
        """Write the last committed state: where all workers raise the same, it would be lost with them.

        Where others continue, it is a checkpoint more.
        """
        try:
            with session.waits_for_room():
                self._ledger.confirm()
                self.now()
        except MeshmendError as error:
            print(f"cannot write a checkpoint ({error})", flush=True)  # the user's own error matters more
