"""Worlds that are lost one after another: when to try again, and when that is of no use any more."""

from __future__ import annotations

from dataclasses import dataclass

TRIES = 8
"""How many worlds may end before any courier is there, once there is a state to lose."""
VAIN = 24
"""How many worlds may end one after another without a step."""
LONGEST = 10.0
"""Seconds between two tries, at most."""


@dataclass
class Attempts:
    """What became of the last worlds."""

    fruitless: int = 0
    """Worlds that ended before a courier was there, one after another."""
    vain: int = 0
    """Worlds that ended without a step, one after another."""
    again: float = 0.0
    """When to look again at a world that ended so: whatever is wrong may pass, or be noticed."""
    step: int = 0
    """The step in which the last one ended."""

    def failed(self, step: int, *, came: bool, now: float) -> None:
        """A world has ended in this step; whether any of its couriers had come."""
        self.fruitless = 0 if came else self.fruitless + 1
        self.vain = self.vain + 1 if step <= self.step else 0
        self.step = step
        self.again = now + min(2.0**self.fruitless / 2, LONGEST) if self.fruitless else 0.0

    @property
    def hopeless(self) -> str:
        """Why there should not be another one."""
        if self.fruitless >= TRIES:
            return f"{TRIES} worlds ended before any courier was there"
        return f"{VAIN} worlds came no further than step {self.step}" if self.vain >= VAIN else ""
