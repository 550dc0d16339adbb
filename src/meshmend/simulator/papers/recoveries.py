"""What a failure costs under each policy: one class per policy of `meshmend run --on-failure`, and what was measured.

* **shrink**: repair, the dead worker's samples read and computed again by the others, lane by lane, and a sum again;
* **spare**: the same, but the spare gets the state from a survivor and computes the dead worker's lanes alone;
* **restart**: everyone re-initialises and repeats the step from memory; half of one was done on average;
* **checkpoint**: everything is started again, reads the checkpoint and repeats half an interval of steps on average.

Repairs of shrink and spare are the parts that every incident records, for as many workers as were measured (`REPAIRS`).
Starting again was measured with 4 workers (`STARTS`, a table of docs/guide.md), and grows as a job's start does.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from meshmend.base.registry import Registry
from meshmend.errors import SimulateError
from meshmend.simulator.step.step import Step

EXAMPLES, LANES = 64, 8
"""A worker's examples in a step, and the lanes that these are divided into."""
DISK = 1e9
"""Bytes/s to and from the disk that all workers share."""


@dataclass(frozen=True)
class Started:
    """A line of the table "What a failure costs" in docs/guide.md: medians of real runs, in seconds."""

    step: float
    total: float
    """From the kill to the next committed step."""

    @property
    def repair(self) -> float:
        """What is left beyond the step that was interrupted and the half of it that is lost on average."""
        return self.total - 1.5 * self.step

    def with_workers(self, workers: int) -> float:
        """Seconds to start again: measured with 4 workers, and longer for more, as the start of a job is."""
        few, many = FIRST
        first = FIRST[few] + (FIRST[many] - FIRST[few]) * (workers - few) / (many - few)
        return self.repair * first / FIRST[few]


@dataclass(frozen=True)
class Repair:
    """The parts of a repair by so many workers: medians of real kills, in seconds."""

    detect: float
    revoke: float
    shrink: float
    exchange: float

    @property
    def total(self) -> float:
        """From the kill until lanes are computed again."""
        return self.detect + self.revoke + self.shrink + self.exchange


PARTS = {"detect": "seen", "revoke": "revoked", "shrink": "shrunk", "exchange": "agreed"}
"""The parts of a repair that do not depend on the model, and what the table calls them."""
MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text())
STARTS = {name: Started(line["step"], line["total"]) for name, line in MEASURED["starts"].items()}
"""By policy; measured.json says which command printed each."""
REPAIRS = {int(count): Repair(**{part: line[part] for part in PARTS}) for count, line in MEASURED["repairs"].items()}
"""By workers."""
FIRST: dict[int, float] = {int(count): seconds for count, seconds in MEASURED["first_step"].items()}
"""Seconds from the command to the first step, by workers."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One worker dies in a job."""

    workers: int
    usual: Step
    """A step before it."""
    state: float
    """Bytes of weights and momentum."""
    samples: float
    """Seconds in which a worker reads its samples of a step."""
    link: float
    """Bytes/s of a link, each way."""
    every: int
    """Steps between two checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What follows, in seconds."""

    repair: float
    """Seeing the death, shrinking and agreeing; or starting again: as measured."""
    state: float = 0.0
    """Weights and momentum, from a survivor or from disk."""
    reload: float = 0.0
    """Samples read again."""
    again: float = 0.0
    """Computed again, or repeated steps."""
    sum_again: float = 0.0
    each_step: float = 0.0
    """What every later step pays: fewer workers until one is replaced, or writing checkpoints."""

    @property
    def total(self) -> float:
        """What the failure costs in all, without `each_step`."""
        return self.repair + self.state + self.reload + self.again + self.sum_again


class Recovery(ABC):
    """What is done after a failure."""

    @abstractmethod
    def cost(self, failure: Failure) -> Cost:
        """What that takes."""


class Shrink(Recovery):
    """The others take over the lanes, and continue without the dead worker."""

    def cost(self, failure: Failure) -> Cost:
        usual, others = failure.usual, failure.workers - 1
        lanes = math.ceil(LANES / others)
        return Cost(
            repair=REPAIRS[failure.workers].total, reload=lanes / LANES * failure.samples,
            again=lanes * usual.compute / LANES, sum_again=usual.sum, each_step=usual.compute / others,
        )  # fmt: skip


class Spare(Recovery):
    """A spare gets the state, and takes over the lanes."""

    def cost(self, failure: Failure) -> Cost:
        return Cost(
            repair=REPAIRS[failure.workers].total, state=failure.state / (2 * failure.link), reload=failure.samples,
            again=failure.usual.compute, sum_again=failure.usual.sum,
        )  # fmt: skip


@dataclass(frozen=True)
class Restart(Recovery):
    """All start again from the step in memory."""

    started: Started

    def cost(self, failure: Failure) -> Cost:
        return Cost(
            repair=self.started.with_workers(failure.workers), reload=failure.samples, again=failure.usual.total / 2
        )


@dataclass(frozen=True)
class Checkpoint(Recovery):
    """All start again from the last checkpoint, and every checkpoint takes time to write."""

    started: Started

    def cost(self, failure: Failure) -> Cost:
        return Cost(
            repair=self.started.with_workers(failure.workers), state=failure.state / DISK, reload=failure.samples,
            again=(1 + failure.every) * failure.usual.total / 2, each_step=failure.state / DISK / failure.every,
        )  # fmt: skip


RECOVERIES: Registry[Recovery] = Registry(
    "policy",
    SimulateError,
    {
        "shrink": Shrink(),
        "spare": Spare(),
        "restart": Restart(STARTS["restart"]),
        "checkpoint": Checkpoint(STARTS["checkpoint"]),
    },
)
"""By the names of `--on-failure`."""
