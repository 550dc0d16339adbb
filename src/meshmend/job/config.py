"""The arguments of `mm.Job`, checked."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from meshmend.errors import JobError
from meshmend.job.data.feed import order_of
from meshmend.job.data.lanes import Lanes
from meshmend.job.data.source import size_of
from meshmend.job.protocol.rounds import MOST_LANES
from meshmend.job.reduction.base import NonFinite, Reduction
from meshmend.job.reduction.registry import choose


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """The arguments of a job; impossible ones are refused when this is created."""

    lanes: Lanes
    """How the data is divided into steps and lanes."""
    kind: type[Reduction]
    """How lanes are added up."""
    nonfinite: NonFinite
    """What to do where a sum holds NaN or Inf."""

    def __post_init__(self) -> None:
        if self.nonfinite not in self.kind.nonfinite:
            able = " or ".join(repr(choice.value) for choice in self.kind.nonfinite)
            raise JobError(
                f"nonfinite={self.nonfinite.value!r} cannot be combined with reduction={self.kind.reduction!r}; "
                f"choose {able}"
            )

    @classmethod
    def checked(
        cls, data: Any, *, batch: Any, lanes: Any, seed: Any, reduction: str, wire: str, nonfinite: str | None
    ) -> JobConfig:
        """From what the user wrote."""
        kind = choose(reduction, wire)
        batch, lanes, seed = _integer("batch", batch), _integer("lanes", lanes), _integer("seed", seed)
        if seed < 0:
            raise JobError(f"seed={seed}: give an integer of at least 0")
        if lanes > MOST_LANES:
            raise JobError(f"lanes={lanes}: give at most {MOST_LANES}")
        try:
            chosen = NonFinite(nonfinite) if nonfinite is not None else kind.nonfinite[0]
        except ValueError:
            able = ", ".join(repr(choice.value) for choice in kind.nonfinite)
            raise JobError(f"unknown nonfinite={nonfinite!r}; choose from {able}") from None
        return cls(lanes=Lanes(size_of(data), batch, lanes, seed, **order_of(data)), kind=kind, nonfinite=chosen)

    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be resumed from."""
        lanes = self.lanes
        return {"size": lanes.size, "batch": lanes.batch, "seed": lanes.seed, "reduction": self.kind.reduction}


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise JobError(f"{name}={value!r}: give an integer") from None
