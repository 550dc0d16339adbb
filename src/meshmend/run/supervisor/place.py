"""A rank as the launcher sees it: where it is, how its worker is, and what has been done about it."""

from __future__ import annotations

from dataclasses import dataclass

from meshmend.run.agent.agent import View


@dataclass
class Place:
    """A rank as the launcher sees it."""

    number: int
    host: str
    view: View
    restarts: int = 0
    joining: bool = False
    dead: bool = False
    """Its death has been dealt with."""
    losing: float = 0.0
    """Since when its courier is missing."""
    due: tuple[int, float] | None = None
    """Its worker is to be started after this step, or at this time."""
    began: int | None = None
    """The step in which its worker was first seen to take part."""
    ending: bool = False
    """It has been killed by us, and will be seen dead soon."""

    def see(self, view: View) -> None:
        """How its worker is now."""
        if view.active and self.began is None:
            self.began = view.step
        self.view = view

    @property
    def did_steps(self) -> bool:
        """Whether its worker has taken part in more than the step it began with."""
        return self.began is not None and self.view.step > self.began

    @property
    def going(self) -> bool:
        """Whether it is about to end, by us or by itself."""
        return self.ending or self.view.fading

    @property
    def alive(self) -> bool:
        """Whether its worker has not ended."""
        return not self.dead and self.view.status is None
