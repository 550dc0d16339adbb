"""Evaluations in the ledger: was each chunk of the data counted once, and did all workers get the same result?"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshmend.base.units import plural
from meshmend.telemetry import Evaluated, Event


@dataclass
class Evaluations:
    """A fold over events, in any order."""

    _first: dict[tuple[int, int], Evaluated] = field(default_factory=dict)
    """What one worker wrote of each, by (attempt, round)."""
    _findings: dict[str, None] = field(default_factory=dict)
    """Each once."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        if not isinstance(event, Evaluated):
            return
        first = self._first.setdefault((event.epoch.attempt, event.round), event)
        if first is event:
            counted, chunks = sum(run[1] for run in event.by), -(-event.size // event.chunk)
            if counted != chunks:
                self._findings[
                    f"the evaluation after {plural(event.step, 'step')} counts {plural(counted, 'chunk')}, and its "
                    f"data has {chunks}"
                ] = None
        elif _content(event) != _content(first):
            self._findings[
                f"workers {first.rank} and {event.rank} differ about the evaluation after "
                f"{plural(event.step, 'step')}: {_content(first)} and {_content(event)}"
            ] = None

    @property
    def count(self) -> int:
        """How many there were, repeated ones included."""
        return len(self._first)

    @property
    def findings(self) -> list[str]:
        """What is wrong, a sentence each."""
        return [*self._findings]


def _content(event: Evaluated) -> str:
    """What all workers must write alike."""
    return f"digest {event.digest} of {plural(event.size, 'sample')} at step {event.step}, chunks by {event.by}"
