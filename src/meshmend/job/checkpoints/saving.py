"""What a worker saves of a job, and with whom: checkpoints that all wait for, and those of somebody who has to end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from meshmend.base.env import Settings
from meshmend.errors import JobError, MeshmendError
from meshmend.job.checkpoints.checkpoints import Checkpoints
from meshmend.job.frameworks.base import Framework
from meshmend.job.ledger import StepLedger
from meshmend.job.reduction.footer import Word
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo

State = tuple[Framework, int, dict[str, Any]]
"""What holds the state, how many steps are committed, and what a checkpoint says about its job."""


def check_name(name: str) -> None:
    """Refuse a name of a checkpoint that cannot be one of a file, or could be one of the run's own."""
    if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name, re.ASCII) or name.startswith("step-"):
        raise JobError(f'job.save got the name {name!r}; give letters, digits, ".", "_" and "-", such as "best"')


class Saver:
    """Writes the last committed state, which `state` gives; None before there is one."""

    def __init__(self, settings: Settings | None, ledger: StepLedger, state: Callable[[], State | None]) -> None:
        self._settings, self._ledger, self._state = settings, ledger, state
        self._named: set[str] = set()
        """Checkpoints that this worker has saved under a name."""
        self.open(1)

    def open(self, job: int) -> None:
        """The checkpoints are those of this job of the script."""
        self.checkpoints = Checkpoints(self._settings, self._ledger, job)

    def now(self, name: str = "", metrics: Mapping[str, float] | None = None) -> bool:
        """Write a checkpoint, with these numbers; whether that succeeded."""
        found = self._state()
        if found is None:
            return True
        framework, step, about = found
        return self.checkpoints.now(framework, step, {**about, "metrics": dict(metrics)} if metrics else about, name)

    def begin(self) -> None:
        """All workers are to write a checkpoint of the state after this step: said in sharded jobs alone."""

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
            found = session.exchange(Word.SAVE if name else Word.END, b"saved" if saved else b"")
            self._ledger.confirm()
            if found[min(found)]:
                break
            if min(found) == rank:
                with session.waits_for_room():
                    self.now(name, metrics)
                saved = True
        if name:
            self._named.add(name)

    def saved(self, name: str) -> dict[str, float]:
        """The numbers that a checkpoint was saved with; see `Job.saved`."""
        # With plain python, what lies there may be another run's: nothing is resumed then.
        return self.checkpoints.metrics(name) if self._settings is not None or name in self._named else {}

    def after_error(self, session: WorkerSession | Solo, *, summed: bool) -> None:
        """Write the last committed state, if it is there: where all workers raise the same, it would be lost with them.

        It is not where PyTorch's objects have changed since, or JAX's arrays were donated. Where others continue, it is
        a checkpoint more.
        """
        found = self._state()
        if found is None or not found[0].holds(summed=summed):
            return
        try:
            with session.waits_for_room():
                self._ledger.confirm()
                self.now()
        except MeshmendError as error:
            print(f"cannot write a checkpoint ({error})", flush=True)  # the user's own error matters more
