"""One all-reduce on a network of links, chunk by chunk (being written)."""

from __future__ import annotations

from dataclasses import dataclass

from meshmend.plan import LinkSpeed, Plan
from meshmend.plan.cost import seconds


@dataclass(frozen=True)
class Flight:
    """What became of one all-reduce."""

    seconds: float


def simulate(plan: Plan, nbytes: float, link: str | LinkSpeed = "tpu-v3") -> Flight:
    """Run one all-reduce of a payload."""
    return Flight(seconds(plan, nbytes, link))
