"""The order in which the words of a job may be called: `share` first, then one `sum` and one `commit` per step.

Everything else that workers do together comes between two steps. A call out of order is a mistake in the user's script,
and would otherwise show as a worker that waits for the others forever; so each has a sentence that says what to do.
"""

from __future__ import annotations

import os

from meshmend.errors import JobError


class CallOrder:
    """Which words one worker's script has called."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.shared = False
        """Whether there is a state to begin with."""
        self.summed = False
        """Whether this step has its sum."""
        self.sharded = False
        """Whether the job makes the updates, and shares them among its workers."""

    @property
    def in_fork(self) -> bool:
        """Whether this process is a fork of the worker, such as one that reads samples."""
        return os.getpid() != self._process

    def check_process(self, word: str) -> None:
        """Refuse to work in a fork of the worker."""
        if self.in_fork:
            raise JobError(
                f"job.{word} was called in a fork of the worker; the job belongs to the process that made it"
            )

    def check_shared(self, word: str) -> None:
        """Refuse what needs a state before there is one."""
        if not self.shared:
            raise JobError(f"job.{word} was called before job.share; share the state that training begins with first")

    @property
    def word(self) -> str:
        """What a step is summed with."""
        return "update" if self.sharded else "sum"

    def check_sum(self, word: str, step: int) -> None:
        """Refuse a second sum in a step, and the word of another kind of job."""
        if word != self.word:
            other = "job.share with optimizer=" if word == "update" else "job.share without optimizer="
            raise JobError(
                f"job.{word} was called in step {step}, and needs {other}; this job's steps are made with "
                f"job.{self.word}"
            )
        if self.summed:
            raise JobError(
                f"job.{word} was called twice in step {step}; return everything to be summed as one tree, and call "
                f"job.commit before the next {word}"
            )

    def check_commit(self, step: int) -> None:
        """Refuse to commit a step that has no sum."""
        if not self.summed:
            what = "an update; call job.update" if self.sharded else "a sum; call job.sum"
            raise JobError(f"job.commit was called in step {step} without {what} once per step")

    def check_rows(self, step: int) -> None:
        """Refuse to read rows of tables that other workers may have updated already."""
        if self.summed:
            raise JobError(
                f"tables.rows was called in step {step} between job.sum and job.commit; call it in the function of "
                "job.sum, or after job.commit"
            )

    def check_between(self, word: str, step: int) -> None:
        """Refuse what belongs between two steps within one."""
        if self.summed:
            raise JobError(
                f"job.{word} was called in step {step} between job.{self.word} and job.commit; call it after job.commit"
            )
