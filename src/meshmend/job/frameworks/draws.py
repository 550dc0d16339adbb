"""Random numbers of a lane, and a check that a lane gives the same result twice.

Any worker may compute a lane, and another one computes it again when that worker dies. So its random numbers must
depend on the seed, the step and the lane, and on nothing else: every computation of a lane gets new `Draws`. Where a
step has several sums, those of each are different.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshmend.job.frameworks.base import Framework


@dataclass(frozen=True)
class Draws:
    """What a lane function gets as its second argument, if it takes one: where it is, and random numbers for it."""

    seed: int
    """The job's."""
    step: int
    lane: int
    """The number of the lane in its step, from 0."""
    sum: int = 0
    """Which sum of the step, from 0."""

    @property
    def _all(self) -> tuple[int, ...]:
        """What they depend on."""
        return (self.seed, self.step, self.lane, self.sum) if self.sum else (self.seed, self.step, self.lane)

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator of numpy."""
        return np.random.default_rng(self._all)

    @property
    def key(self) -> Any:
        """A key of `jax.random`."""
        from meshmend.job.frameworks import jax

        return jax.key_of(*self._all)

    @cached_property
    def generator(self) -> Any:
        """A generator of PyTorch on the processor; its global one is seeded for each lane anyway."""
        from meshmend.job.frameworks.torch import rng

        return rng.generator(self._all)


def difference(framework: Framework, once: Any, twice: Any) -> str | None:
    """Return the first leaf that differs between two results of one lane; None if there is none."""
    for (name, a), (_, b) in zip(framework.leaves_of(once), framework.leaves_of(twice), strict=False):
        if framework.host(a).tobytes() != framework.host(b).tobytes():
            return name
    return None


def say_if_different(framework: Framework, once: Any, twice: Any) -> None:
    """Say that two results of one lane differ, if they do."""
    name = difference(framework, once, twice)
    if name is not None:
        print(
            f"the function given to job.sum gave two results for one lane that differ in leaf {name!r}, so a dead "
            "worker's lane would not come out the same again; draw random numbers from its second argument, "
            "function(lane, draws), or turn this check off with mm.Job(check=False)",
            flush=True,
        )
