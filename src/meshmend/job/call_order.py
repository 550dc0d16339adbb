"""The order in which the words of a job may be called: `share` first, then in each step a `sum` or more and a `commit`.

Everything else that workers do together comes between two steps. A call out of order is a mistake in the user's script,
and would otherwise show as a worker that waits for the others forever; so each has a sentence that says what to do.
"""

from __future__ import annotations

import os

from meshmend.errors import JobError
from meshmend.job.reduction.footer import MOST_SUMS, Word


class CallOrder:
    """Which words one worker's script has called."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.shared = False
        """Whether there is a state to begin with."""
        self.sums = 0
        """How many sums this step has so far."""
        self.sharded = False
        """Whether the job makes the updates, and shares them among its workers."""
        self.tables = False
        """Whether the job has embedding tables, whose rows are updated with the one sum of a step."""

    @property
    def summed(self) -> bool:
        """Whether this step has a sum."""
        return self.sums > 0

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
    def word(self) -> Word:
        """What a step is summed with."""
        return Word.UPDATE if self.sharded else Word.SUM

    def check_sum(self, word: Word, step: int) -> None:
        """Refuse the word of another kind of job, a second update in a step, and far too many sums."""
        if word != self.word:
            other = "job.share with optimizer=" if word == Word.UPDATE else "job.share without optimizer="
            raise JobError(
                f"job.{word} was called in step {step}, and needs {other}; this job's steps are made with "
                f"job.{self.word}"
            )
        if self.summed and self.sharded:
            raise JobError(
                f"job.update was called twice in step {step}; an update is a whole step, so return everything to be "
                "summed as one tree, and call job.commit before the next update"
            )
        if self.summed and self.tables:
            raise JobError(
                f"job.sum was called twice in step {step} of a job with embedding tables, which has one sum per step; "
                "return everything to be summed as one tree, and call job.commit before the next sum"
            )
        if self.sums >= MOST_SUMS:
            raise JobError(
                f"job.sum was called more than {MOST_SUMS} times in step {step}; call job.commit at the end of each "
                "step, or return more to be summed as one tree"
            )

    def check_commit(self, step: int) -> None:
        """Refuse to commit a step that has no sum."""
        if not self.summed:
            call = f"job.{self.word} " + ("once" if self.sharded else "at least once")
            raise JobError(f"job.commit was called in step {step} before job.{self.word}; call {call} in every step")

    def check_next(self, step: int) -> None:
        """Refuse to begin a step while another one is not committed."""
        if self.summed:
            raise JobError(
                f"step {step} ended without job.commit; call it once per step, after the last job.{self.word}"
            )

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
