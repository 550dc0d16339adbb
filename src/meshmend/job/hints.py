"""What a worker tells its user once: a loop that repeats what was done, a state that is changed too late."""

from __future__ import annotations

from meshmend.job.frameworks.base import Framework, InPlace


class Hints:
    """Which hints one worker has given."""

    def __init__(self) -> None:
        self._repeat = self._change = False
        self._epoch: int | None = None
        """The epoch of the last round."""

    def repeats(self, what: str, began: int) -> None:
        """The user's loop goes through what was done before this worker began."""
        if self._repeat:
            return
        self._repeat = True
        print(
            f"{what} before this worker began with step {began}, and what your loop does around it (an evaluation) is "
            "repeated while the others wait; loop with `for epoch in job.epochs(n)`, which begins where the job stands",
            flush=True,
        )

    def round_begins(self, framework: Framework, step: int, epoch: int | None, *, first: bool) -> None:
        """In the first round of an epoch, look at what the script has changed since the last commit."""
        before, self._epoch = self._epoch, epoch
        if self._change or before is None or before == epoch or not first:
            return
        if isinstance(framework, InPlace) and (name := framework.changed()):
            self._change = True
            print(
                f"step {step}: the {name} was changed after job.commit, so a worker that joins now and a run that is "
                "resumed here do not have the change; make it between job.sum and job.commit",
                flush=True,
            )
