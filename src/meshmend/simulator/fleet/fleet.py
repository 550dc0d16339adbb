"""Weeks of many jobs, each on its own mesh, under each policy; and what became of all their chip-hours.

Goodput is useful chip-hours over all chip-hours, spares included. Every policy sees the same failures, so differences
between policies are compared job by job and their standard error is small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshmend.base.terminal import SILENT, Tell
from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.mesh.hole import HOST, KINDS, count
from meshmend.mesh.planners import ALGORITHMS
from meshmend.simulator.fleet.chip_hours import Cause, Stretch
from meshmend.simulator.fleet.history import REPAIR_TIMES, History, sample
from meshmend.simulator.fleet.policies import POLICIES, Costs, Site, follow
from meshmend.simulator.fleet.speeds import Solved, Speeds, Step

DAY, WEEK = 24.0, 168.0
"""In hours."""
TPU_V4 = {"host": 0.0008 / DAY, "link": 0.00005 / DAY}
"""Failures an hour: machines 0.08 % a day, cables 0.005 % a day, as Google gives for TPU v4 (NSDI'24)."""


AROUND_HOLES = ALGORITHMS.where(lambda planner: not planner.needs_intact)
"""Algorithms that have plans for meshes with holes."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What is simulated. Times are in hours, rates in failures an hour of one thing."""

    mesh: Mesh
    weeks: float = 4.0
    jobs: int = 250
    policies: tuple[str, ...] = ("wait", "restart", "spare", "route")
    rate: Mapping[str, float] = field(default_factory=lambda: dict(TPU_V4))
    repair: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 4.0))
    """Mean time from a failure until the thing works again."""
    repair_times: str = "exponential"
    """How they are spread about that mean: a name in REPAIR_TIMES."""
    checkpoint: float | None = None
    """Working time between checkpoints; None: Young's sqrt(2 * cost / failures an hour)."""
    checkpoint_cost: float = 1 / 60
    detect: float = 1 / 60
    restart: float = 10 / 60
    reroute: float = 0.5 / 60
    spares: int | None = None
    """Spare hosts; None: one for every hundred hosts, rounded up."""
    step: Step = field(default_factory=Step)
    algorithm: str = "trees"
    plans: int = 24
    """How many of the most frequent holes are also planned in full."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.mesh.intact or self.mesh.size < 2:
            raise SimulateError(f"a fleet begins with an intact mesh of at least two chips, not {self.mesh}")
        for name in self.policies:
            POLICIES.find(name)
        REPAIR_TIMES.find(self.repair_times)
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise SimulateError(
                f"cannot compare the policies {', '.join(self.policies) or '(none)'}: choose from "
                f"{', '.join(POLICIES)}, each once"
            )
        if self.algorithm not in AROUND_HOLES:
            raise SimulateError(
                f"algorithm={self.algorithm!r} cannot route around a hole; choose from {', '.join(AROUND_HOLES)}"
            )
        for kind, value in self.rate.items():
            if kind not in KINDS or not 0 <= value < math.inf:
                raise SimulateError(f"a rate of {value * 24:g} a day for {kind}: give 0 or more, for {_KINDS}")
            if value and kind not in self.repair:
                raise SimulateError(f"{kind}s fail but have no repair time: give one, such as --repair {kind}=4h")
        for kind, value in self.repair.items():
            if kind not in KINDS or not 0 < value < math.inf:
                raise SimulateError(f"a repair time of {value:g} h for {kind}: give more than 0 h, for {_KINDS}")
        _within("weeks", self.weeks, 0, math.inf, above=True)
        if self.checkpoint is not None:
            _within("checkpoint interval in hours", self.checkpoint, 0, math.inf, above=True)
        for name in ("checkpoint_cost", "detect", "restart", "reroute"):
            _within(f"{name.replace('_', ' ')} in hours", getattr(self, name), 0, math.inf)
        _within("sum share", self.step.sum_share, 0, 1)
        for name, value, least in (
            ("jobs", self.jobs, 1),
            ("spares", self.spares or 0, 0),
            ("lanes", self.step.lanes, 0),
            ("plans", self.plans, 0),
            ("seed", self.seed, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SimulateError(f"{name}={value!r}: expected a whole number, {least} or more")

    @property
    def hours(self) -> float:
        """How long each job is watched."""
        return self.weeks * WEEK

    @property
    def failures_an_hour(self) -> float:
        """Failures of anything in one job's mesh."""
        return sum(value * count(self.mesh, kind) for kind, value in self.rate.items())

    @property
    def interval(self) -> float:
        """Working time between checkpoints: as given, or by Young (1974)."""
        if self.checkpoint is not None:
            return self.checkpoint
        if not self.failures_an_hour:
            return math.inf
        return max(math.sqrt(2 * self.checkpoint_cost / self.failures_an_hour), 1 / 60)

    @property
    def spare_hosts(self) -> int:
        """Hosts that stand by under the policy `spare`."""
        return -(-count(self.mesh, "host") // 100) if self.spares is None else self.spares


_KINDS = ", ".join(f"{kind}s" for kind in KINDS[:-1]) + f" and {KINDS[-1]}s"


def _within(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    if not low <= value <= high or value == math.inf or (above and value == low):
        limits = f"more than {low}" if above else f"{low} or more" if high == math.inf else f"{low} to {high}"
        raise SimulateError(f"{name} is {value:g}: expected {limits}")


@dataclass(frozen=True)
class Outcome:
    """What one policy made of all jobs."""

    policy: str
    useful: npt.NDArray[np.float64]
    """Chip-hours of useful work of each job."""
    lost: Mapping[Cause, float]
    """Chip-hours lost in all jobs, by cause."""
    total: float
    """Chip-hours of one job, with its spares."""
    stretches: tuple[Stretch, ...]
    """What the job shown in charts did when."""

    @cached_property
    def goodputs(self) -> npt.NDArray[np.float64]:
        """Useful over all chip-hours of each job."""
        return self.useful / self.total

    @property
    def goodput(self) -> float:
        """Useful over all chip-hours of all jobs."""
        return float(self.goodputs.mean())

    @property
    def error(self) -> float:
        """The standard error of the goodput."""
        return _error(self.goodputs)

    def ahead_of(self, other: Outcome) -> tuple[float, float]:
        """How much more of all chip time is useful than under another policy, and the standard error of that."""
        apart = self.goodputs - other.goodputs
        return float(apart.mean()), _error(apart)


def _error(values: npt.NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf


@dataclass(frozen=True)
class Study:
    """A fleet and what each policy made of it."""

    fleet: Fleet
    outcomes: Mapping[str, Outcome]
    failures: int
    """In all jobs."""
    holed: float
    """The part of the time in which something was dead."""
    solved: Solved | None
    """How speeds around holes were found, if a policy needed them."""
    shown: History
    """The job of the charts: the one with the median number of failures."""
    shown_job: int


def study(fleet: Fleet, tell: Tell = SILENT) -> Study:
    """Simulate every job under every policy."""
    histories = []
    for job in range(fleet.jobs):
        histories.append(sample(fleet.mesh, fleet.hours, fleet.rate, fleet.repair, fleet.seed, job, fleet.repair_times))
        tell("drawing failures", job + 1, fleet.jobs)
    speeds = Speeds(fleet.mesh, fleet.step, fleet.algorithm)
    spans = [span for history in histories for span in history.spans()]
    solved = None
    if any(POLICIES[name].routes for name in fleet.policies):
        solved = speeds.solve(spans, tell, plans=fleet.plans)
    costs = Costs(
        interval=fleet.interval,
        checkpoint=fleet.checkpoint_cost,
        detect=fleet.detect,
        restart=fleet.restart,
        reroute=fleet.reroute,
    )
    calm = 1 / fleet.failures_an_hour if fleet.failures_an_hour else math.inf
    site = Site(fleet.mesh, costs, fleet.spare_hosts, speeds, calm)
    median = sorted(range(fleet.jobs), key=lambda job: (histories[job].failures, job))[fleet.jobs // 2]
    outcomes = {name: _outcome(name, site, histories, median, tell) for name in fleet.policies}
    return Study(
        fleet,
        outcomes,
        failures=sum(history.failures for history in histories),
        holed=sum(hours for hole, hours in spans if hole) / (fleet.hours * fleet.jobs),
        solved=solved,
        shown=histories[median],
        shown_job=median,
    )


def _outcome(policy: str, site: Site, histories: list[History], shown: int, tell: Tell) -> Outcome:
    useful, lost = np.zeros(len(histories)), dict.fromkeys(Cause, 0.0)
    spares = site.spares * HOST[0] * HOST[1] if POLICIES[policy].uses_spares else 0
    stretches: tuple[Stretch, ...] = ()
    for job, history in enumerate(histories):
        account = follow(policy, site, history, trace=job == shown)
        useful[job] = account.useful
        for cause, chip_hours in account.lost.items():
            lost[cause] += chip_hours
        lost[Cause.SPARES] += spares * history.hours
        stretches = tuple(account.stretches) if account.stretches is not None else stretches
        tell(f"running {policy}", job + 1, len(histories))
    return Outcome(policy, useful, lost, (site.mesh.size + spares) * histories[0].hours, stretches)
