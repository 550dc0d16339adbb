"""Where a job that keeps more than a replica takes part in its session: sharded updates, embedding tables.

The base class does nothing, as in a job of replicas alone. The others are in `slices/answers.py` and
`embeddings/saving.py`.
"""

from __future__ import annotations

from meshmend.job.reduction.footer import Word


class Hooks:
    """What a session calls, and when. Its main thread calls all but `hand_out`."""

    word = Word.SUM
    """What a script calls in a round that is a step."""

    def begin(self) -> None:
        """Be called when the worker is about to be ready."""

    def wanted(self, round: int) -> bool:
        """Whether the courier waits for the update of a round."""
        del round
        return False

    def update(self, round: int) -> None:
        """Make it."""

    def check(self) -> None:
        """Be called before a state counts as final, and may be handed out."""

    def saves(self, *, first: bool) -> bool:
        """Whether all are to save the state after this round."""
        del first
        return False

    def stays(self) -> bool:
        """Whether this worker must continue although the run is halted, to save the same step as the others."""
        return False

    def halt(self) -> None:
        """Write what no other worker will: this one exits."""

    def hand_out(self) -> None:
        """Give copies of slices to other workers, if they are asked for; called by the listener, with its lock."""
