"""A whole run: start-up, steps, and the evaluations between them; and what two published steps say about a model.

Evaluating is going forward over the evaluation set, spread over all replicas: a third of a training step's work for
each example, and the fixed time once. A run's **start-up** is `once + shared / chips`: what is done once, and what the
hosts divide, such as filling their caches.

**Calibrating.** Time is linear in the two numbers of a model that shapes do not tell: the fixed time of a step, and the
part of the peak that computing reaches (as its inverse, `slowness`). Two published steps with different numbers of
examples per replica give both; every other published step can then prove them wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshmend.base.units import duration_text
from meshmend.errors import SimulateError
from meshmend.simulator.step.models.layers import BACKWARD
from meshmend.simulator.step.step import Setting, step

ROUNDING = 1e-9
"""Seconds, or a part: less than nothing by that is nothing."""


@dataclass(frozen=True)
class Rates:
    """The two numbers of a model that are calibrated."""

    of_peak: float
    fixed: float


@dataclass(frozen=True)
class Evaluations:
    """How often a run evaluates, and on how much."""

    examples: int
    every: int
    """Steps between two evaluations."""


@dataclass(frozen=True)
class Line:
    """Seconds of a step with its share of evaluation: `rest + fixed * a model's fixed time + slowness / of_peak`."""

    rest: float
    fixed: float
    slowness: float

    def at(self, rates: Rates) -> float:
        """The predicted time."""
        return self.rest + self.fixed * rates.fixed + self.slowness / rates.of_peak


def evaluation(setting: Setting, examples: int) -> float:
    """Seconds to go forward over so many examples on all replicas."""
    each = math.ceil(examples / setting.replicas)
    work = each * setting.model.work(setting.cores) / (1 + BACKWARD) / (setting.machine.peak * setting.of_peak)
    return work + setting.fixed * setting.model.part(setting.cores)


def line(setting: Setting, evaluations: Evaluations) -> Line:
    """How a step's time depends on the two calibrated numbers; input is taken as hidden, and sums are not."""

    def seconds(of_peak: float, fixed: float) -> float:
        done = replace(setting, of_peak=of_peak, fixed=fixed, hide=False)
        parts = step(done)
        return parts.total - parts.input + evaluation(done, evaluations.examples) / evaluations.every

    at_peak, with_fixed, at_half = seconds(1.0, 0.0), seconds(1.0, 1.0), seconds(0.5, 0.0)
    slowness = at_half - at_peak
    return Line(at_peak - slowness, with_fixed - at_peak, slowness)


def calibrate(points: tuple[tuple[Line, float], tuple[Line, float]]) -> Rates:
    """The fixed time and the part of the peak at which two steps take so many seconds."""
    (one, first), (other, second) = points
    twist = one.fixed * other.slowness - other.fixed * one.slowness
    if abs(twist) < 1e-9 * one.fixed * other.slowness:
        raise SimulateError(
            "two steps with the same number of examples per replica cannot separate the fixed time from the rate: "
            "give two sizes that differ in it"
        )
    left, right = first - one.rest, second - other.rest
    fixed = (left * other.slowness - right * one.slowness) / twist
    slowness = (one.fixed * right - other.fixed * left) / twist
    if fixed < -ROUNDING or slowness < 1 - ROUNDING:
        raise SimulateError(
            f"steps of {duration_text(first)} and {duration_text(second)} contradict each other: they need a fixed "
            f"time of {duration_text(fixed)} and {slowness:.3g} times the time at the peak rate"
        )
    return Rates(min(1.0, 1 / slowness), max(0.0, fixed))


def calibrate_rate(point: tuple[Line, float]) -> Rates:
    """The part of the peak alone, with no fixed time, from one step."""
    at, seconds = point
    return Rates(at.slowness / (seconds - at.rest), 0.0)
