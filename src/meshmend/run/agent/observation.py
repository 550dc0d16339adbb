"""What the launcher knows of a rank: an observation by the agent of its host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class CourierState(StrEnum):
    """How the courier of a rank is."""

    NONE = "none"
    """None works there, or the world of the last one has been cleared away."""
    ALIVE = "alive"
    LOST = "lost"
    """It is dead, and its world has not been cleared away."""


class Cause(StrEnum):
    """Why the launcher killed a worker."""

    NONE = "none"
    """It did not: the worker ended by itself, or something else killed it."""
    STATELESS = "stateless"
    UNBEGUN = "unbegun"
    HANG = "hang"
    LOST_COURIER = "lost_courier"
    HALTED = "halted"
    RESTARTED = "restarted"
    CUT_OFF = "cut_off"
    REPLACED = "replaced"
    RUN_ENDED = "run_ended"


TEXTS = {
    Cause.NONE: "",
    Cause.STATELESS: "no worker had the state any more",
    Cause.UNBEGUN: "it had not opened its job yet",
    Cause.HANG: "hang",
    Cause.LOST_COURIER: "lost its courier",
    Cause.HALTED: "halted",
    Cause.RESTARTED: "restarted",
    Cause.CUT_OFF: "cut off from the majority",
    Cause.REPLACED: "its rank was started again",
    Cause.RUN_ENDED: "the run ended",
}
"""Each cause in words, for people."""


@dataclass(frozen=True)
class Observation:
    """One rank, as its agent saw it."""

    rank: int
    process: int = 0
    status: int | None = None
    """How the worker ended; None while it lives."""
    cause: Cause = Cause.NONE
    """Why the launcher killed it, once it has ended."""
    how: str = ""
    """How it ended in words, for people; nothing depends on it."""
    error: dict[str, Any] | None = None
    """The exception that ended it."""
    ready: bool = False
    """It has opened its job."""
    active: bool = False
    """It takes part in rounds."""
    over: bool = False
    """The job is over for it."""
    courier: CourierState = CourierState.NONE
    world: int = 0
    """The world whose couriers may work."""
    standby: int = 0
    """The world whose courier has started, or works already."""
    agreed: int = 0
    """The last world whose members have agreed on who they are."""
    still: int = 0
    """Whether it makes no progress, and for how long (`pulse.py`)."""
    step: int = field(default=0, compare=False)
    """The step it is in; a change of this alone is not reported."""
    saving: bool = False
    """It writes its last checkpoint."""
    fading: bool = False
    """It has begun to exit; its status is known once its memory has been given back."""
    stuck: bool = False
    """Its courier is in a repair that takes too long, or needs a new world."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**{**values, "courier": CourierState(values["courier"]), "cause": Cause(values["cause"])})
