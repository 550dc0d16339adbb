"""Worlds that are lost one after another: when to try again, and when that is of no use any more."""

from __future__ import annotations

from dataclasses import dataclass

from meshmend.base.clocks import WORLD_BACKOFF
from meshmend.run.supervisor.messages import HaltReason, NoCourierEver, NoProgress

TRIES = 8
"""How many worlds in a row may end before any courier came up, once there is a state to lose."""
IN_VAIN = 24
"""How many worlds in a row may end without completing a step."""


@dataclass
class Backoff:
    """What became of the last worlds."""

    fruitless: int = 0
    """Worlds in a row that ended before any courier came up."""
    in_vain: int = 0
    """Worlds in a row that ended without completing a step."""
    again: float = 0.0
    """When to try again: whatever is wrong may pass, or be noticed."""
    step: int = 0
    """The step in which the last one ended."""

    def failed(self, step: int, *, came_up: bool, now: float) -> None:
        """A world has ended in this step; whether any of its couriers had come up."""
        self.fruitless = 0 if came_up else self.fruitless + 1
        self.in_vain = self.in_vain + 1 if step <= self.step else 0
        self.step = step
        self.again = now + min(2.0**self.fruitless / 2, WORLD_BACKOFF) if self.fruitless else 0.0

    @property
    def hopeless(self) -> HaltReason | None:
        """Why there should not be another one."""
        if self.fruitless >= TRIES:
            return NoCourierEver(TRIES)
        return NoProgress(IN_VAIN, self.step) if self.in_vain >= IN_VAIN else None
