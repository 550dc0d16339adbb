"""What one failure costs with 4 to 32 workers: AlexNet and GoogLeNet, by policy.

The question of arXiv 1709.03316, which compares ULFM (shrink) with Reinit (restart) and checkpoints. Step times follow
from the shapes and a stated cluster; what repairing takes was measured on real processes (`measured.json`). Repairs of
shrink and spare are the parts that every incident records, for as many workers as the row has (`REPAIRS`). Starting
again was measured with 4 workers (`STARTS`, a table of docs/guide.md), and grows as a job's start does (`starting`).
Cost is time beyond that of a run without the failure:

* **shrink**: repair, the dead worker's samples read and computed again by the others, lane by lane, and a sum again;
* **spare**: the same, but the spare gets the state from a survivor and computes the dead worker's lanes alone;
* **restart**: everyone re-initialises and repeats the step from memory; half of one was done on average;
* **checkpoint**: everything is started again, reads the checkpoint and repeats half an interval of steps on average.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshmend.base.terminal import SILENT, Tell, notes, table
from meshmend.base.units import milliseconds as ms
from meshmend.base.units import percent
from meshmend.errors import SimulateError
from meshmend.simulator.papers.charts import draw_faults
from meshmend.simulator.step.hardware import MACHINES, mesh_of
from meshmend.simulator.step.models import model
from meshmend.simulator.step.step import Setting, Step, step

EXAMPLES, LANES = 64, 8
"""A worker's examples in a step, and the lanes that these are divided into."""
EVERY = 100
"""Steps between checkpoints."""
OF_PEAK = 0.5
DISK = 1e9
"""Bytes/s to and from the disk that all workers share."""
STATE = 8
"""Bytes of state per parameter: weight and momentum in float32."""


PARTS = {"detect": "seen", "revoke": "revoked", "shrink": "shrunk", "exchange": "agreed"}
"""The parts of a repair that do not depend on the model, and what the table calls them."""


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


_DATA = json.loads(Path(__file__).with_name("measured.json").read_text())
STARTS = {name: Started(line["step"], line["total"]) for name, line in _DATA["starts"].items()}
"""By policy; measured.json says which command printed each."""
REPAIRS = {int(count): Repair(**{part: line[part] for part in PARTS}) for count, line in _DATA["repairs"].items()}
"""By workers."""
FIRST: dict[int, float] = {int(count): seconds for count, seconds in _DATA["first_step"].items()}
"""Seconds from the command to the first step, by workers."""
POLICIES = ("shrink", "spare", *STARTS)


@dataclass(frozen=True)
class Row:
    """One failure, under one policy; seconds."""

    model: str
    workers: int
    policy: str
    step: float
    sum: float
    """What of the step is communication."""
    repair: float
    """Seeing the death, shrinking and agreeing; or starting again: as measured."""
    state: float
    """Weights and momentum, from a survivor or from disk."""
    reload: float
    """Samples read again."""
    again: float
    """Computed again, or repeated steps."""
    sum_again: float
    each_step: float
    """What every later step pays: fewer workers until one is replaced, or writing checkpoints."""

    @property
    def total(self) -> float:
        """What the failure costs in all, without `each_step`."""
        return self.repair + self.state + self.reload + self.again + self.sum_again


@dataclass(frozen=True)
class Faults:
    """The table."""

    rows: tuple[Row, ...]
    every: int

    def render(self) -> str:
        """As text."""
        heads = (
            "model", "policy", "workers", "step", "of it\nsum", "repair", "state", "data\nreload", "computed\nagain",
            "sum\nagain", "cost of\na failure", "in steps", "each step\nafter",
        )  # fmt: skip
        cells = [
            (
                model(row.model).title, row.policy, f"{row.workers}", ms(row.step), ms(row.sum), ms(row.repair),
                ms(row.state), ms(row.reload), ms(row.again), ms(row.sum_again), ms(row.total),
                f"{row.total / row.step:.2f}", f"+{ms(row.each_step)}" if row.each_step else "",
            )
            for row in self.rows
        ]  # fmt: skip
        machine = MACHINES["cpu-cluster"]
        return "\n".join(
            [
                "What one failure costs (times in ms)",
                table(heads, cells, left=2),
                "",
                "Repairs with shrink and spare, as measured (ms)",
                table(("workers", *PARTS.values(), "in all"), map(_parts, REPAIRS)),
                notes(
                    f"{machine.about}; computing at {percent(OF_PEAK)} of the peak, input {machine.host_input / 1e9:g} "
                    f"GB/s a worker, checkpoints {DISK / 1e9:g} GB/s for all: assumptions",
                    f"{EXAMPLES} examples a worker in {LANES} lanes, gradients in float32 round a ring, a checkpoint "
                    f"every {self.every} steps",
                    f"repair is measured, not computed. Shrink and spare: {_DATA['about_repairs']}",
                    f"restart and checkpoint: {_DATA['about_starts']}",
                    "each step after: with shrink until the dead worker is replaced; with checkpoint, writing it",
                ),
            ]
        )

    def facts(self) -> dict[str, object]:
        """For programs."""
        starts = {name: {**asdict(line), "repair": line.repair} for name, line in STARTS.items()}
        repairs = {str(count): asdict(line) for count, line in REPAIRS.items()}
        rows = [{**asdict(row), "total": row.total} for row in self.rows]
        measured = {"starts": starts, "repairs": repairs}
        return {"table": "mpi-faults", "every": self.every, "of_peak": OF_PEAK, "measured": measured, "rows": rows}

    def draw(self, path: str) -> None:
        """Cost over workers, a line per policy, a panel per model."""
        draw_faults(
            path,
            {
                model(name).title: {
                    policy: [
                        (row.workers, row.total / row.step)
                        for row in self.rows
                        if (row.model, row.policy) == (name, policy)
                    ]
                    for policy in POLICIES
                }
                for name in dict.fromkeys(row.model for row in self.rows)
            },
        )


def starting(policy: str, workers: int) -> float:
    """Seconds to start again: measured with 4 workers, and longer for more, as the start of a job is."""
    few, many = FIRST
    first = FIRST[few] + (FIRST[many] - FIRST[few]) * (workers - few) / (many - few)
    return STARTS[policy].repair * first / FIRST[few]


def _parts(workers: int) -> tuple[str, ...]:
    repair = REPAIRS[workers]
    return (f"{workers}", *(ms(getattr(repair, part)) for part in PARTS), ms(repair.total))


def faults(
    models: Sequence[str] = ("alexnet", "googlenet"),
    workers: Sequence[int] = tuple(REPAIRS),
    every: int = EVERY,
    tell: Tell = SILENT,
) -> Faults:
    """Compute the table."""
    if every < 1:
        raise SimulateError(f"a checkpoint every {every} steps: at least 1 is needed")
    if min(workers) < 2:
        raise SimulateError(f"{min(workers)} workers: a failure needs at least 2, so that one is left")
    if unknown := sorted({*workers} - REPAIRS.keys()):
        known = ", ".join(map(str, REPAIRS))
        raise SimulateError(f"{unknown[0]} workers: repairs were measured with {known} workers, choose from these")
    rows = []
    for name in models:
        for policy in POLICIES:
            tell(f"{model(name).title}, {policy}")
            rows += [_row(name, policy, count, every) for count in workers]
    return Faults(tuple(rows), every)


def _row(name: str, policy: str, workers: int, every: int) -> Row:
    machine = MACHINES["cpu-cluster"]
    setting = Setting(
        model=model(name), mesh=mesh_of(workers), batch=EXAMPLES * workers, of_peak=OF_PEAK, machine=machine,
        algorithm="ring", wire="float32",
    )  # fmt: skip
    usual = step(setting)
    state = STATE * setting.model.params
    samples = EXAMPLES * setting.model.input_bytes / machine.host_input
    share = 0.0
    moved, again, reload, sum_again = _costs(policy, usual, workers)
    if policy == "shrink":
        share = usual.compute / (workers - 1)
    if policy == "checkpoint":
        again += every / 2 * usual.total
        share = state / DISK / every
    rate = {"spare": 2 * machine.link.bandwidth, "checkpoint": DISK}.get(policy, math.inf)
    return Row(
        name, workers, policy, usual.total, usual.sum,
        starting(policy, workers) if policy in STARTS else REPAIRS[workers].total, moved * state / rate,
        reload * samples, again, sum_again, share,
    )  # fmt: skip


def _costs(policy: str, usual: Step, workers: int) -> tuple[float, float, float, float]:
    """States moved, seconds computed again, a worker's samples read again (by each), seconds of sums again."""
    if policy == "shrink":
        lanes = math.ceil(LANES / (workers - 1))
        return 0.0, lanes * usual.compute / LANES, lanes / LANES, usual.sum
    if policy == "spare":
        return 1.0, usual.compute, 1.0, usual.sum
    return (1.0 if policy == "checkpoint" else 0.0), usual.total / 2, 1.0, 0.0
