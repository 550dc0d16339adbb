"""What a dead host costs a step: ResNet-50 and BERT on 512 and 1024 chips, by ring, row pairs and trees.

The question of arXiv 2011.03605. Each live chip keeps its examples (as many as in the published runs on 4096 chips, the
most that the sum can weigh), so that the loss of throughput has two parts: the chips that are gone, which no plan
brings back, and the sum, which takes another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from meshmend.base.terminal import SILENT, Tell, notes, table
from meshmend.base.units import milliseconds as ms
from meshmend.base.units import percent
from meshmend.mesh import Mesh
from meshmend.mesh.planners import ALGORITHMS
from meshmend.simulator.papers.charts import Loss, draw_holes
from meshmend.simulator.papers.published import first, rates_of
from meshmend.simulator.step.models import model
from meshmend.simulator.step.step import Setting, Step, step

MESHES = (("16x32", "16x32 -host@8,12"), ("32x32", "32x32 -host@12,16"))


@dataclass(frozen=True)
class Row:
    """One model on one mesh by one algorithm, whole and with the hole."""

    model: str
    whole_mesh: str
    hole_mesh: str
    algorithm: str
    chips: int
    live: int
    whole: Step
    hole: Step
    whole_hidden: Step
    """The same with the sum hidden in the backward pass as far as it goes."""
    hole_hidden: Step

    @property
    def loss(self) -> float:
        """The part of the throughput that the dead host costs, with nothing hidden."""
        return 1 - self.hole.throughput / self.whole.throughput

    @property
    def loss_hidden(self) -> float:
        """The same with the sum hidden."""
        return 1 - self.hole_hidden.throughput / self.whole_hidden.throughput

    @property
    def gone(self) -> float:
        """The part of the chips that is dead."""
        return 1 - self.live / self.chips


@dataclass(frozen=True)
class Holes:
    """The table."""

    rows: tuple[Row, ...]
    of_peak: dict[str, float]
    examples: dict[str, int]
    """Examples per chip."""

    def render(self) -> str:
        """As text."""
        heads = (
            "model", "mesh with its hole", "by", "live\nchips", "sum\nwhole", "sum\nhole", "step\nwhole", "step\nhole",
            "examples/s\nhole", "throughput\nloss", "of it\nchips", "of it\nsum", "loss, sum\nhidden",
        )  # fmt: skip
        cells = [
            (
                model(row.model).title, row.hole_mesh, row.algorithm, f"{row.live}",
                ms(row.whole.sum), ms(row.hole.sum), ms(row.whole.total), ms(row.hole.total),
                f"{row.hole.throughput:,.0f}", percent(row.loss), percent(row.gone),
                percent(row.loss - row.gone, sign=True), percent(row.loss_hidden),
            )
            for row in self.rows
        ]  # fmt: skip
        rates = ", ".join(f"{model(name).title} {percent(part)}" for name, part in self.of_peak.items())
        each = ", ".join(f"{model(name).title} {count}" for name, count in self.examples.items())
        return "\n".join(
            [
                "What a dead host costs a step on TPU-v3 (times in ms)",
                table(heads, cells, left=3),
                notes(
                    f"computed at this part of the peak: {rates}; calibrated on the published times on 4096 chips",
                    "sums simulated chunk by chunk over links of 80 GB/s and 1 µs",
                    f"examples a chip, whole and with the hole: {each}; gradients in bf16, update sharded",
                    "sum hidden: gradients are sent while the backward pass goes on, else after it",
                ),
            ]
        )

    def facts(self) -> dict[str, object]:
        """For programs."""
        rows = [
            {**asdict(row), "loss": row.loss, "gone": row.gone, "loss_hidden": row.loss_hidden} for row in self.rows
        ]
        return {"table": "mesh-holes", "of_peak": self.of_peak, "examples_a_chip": self.examples, "rows": rows}

    def draw(self, path: str) -> None:
        """Bars of the loss, by algorithm."""
        groups = list(dict.fromkeys((row.model, row.chips) for row in self.rows))
        draw_holes(
            path,
            [f"{model(name).title}\n{chips} chips" for name, chips in groups],
            {
                name: [
                    Loss(row.loss, row.gone, row.hole.total)
                    for group in groups
                    for row in self.rows
                    if (row.model, row.chips, row.algorithm) == (*group, name)
                ]
                for name in dict.fromkeys(row.algorithm for row in self.rows)
            },
        )


def holes(
    models: Sequence[str] = ("resnet50", "bert"),
    meshes: Sequence[tuple[str, str]] = MESHES,
    of_peak: Mapping[str, float] | None = None,
    tell: Tell = SILENT,
) -> Holes:
    """Compute the table; the part of the peak is calibrated unless given."""
    rates = rates_of(models, of_peak, tell)
    examples = {name: (first(name).batch or 0) // first(name).chips for name in models}
    rows = []
    for name in models:
        for whole, hole in meshes:
            for algorithm in sorted(ALGORITHMS.where(lambda planner: not planner.needs_intact)):
                tell(f"{model(name).title} on {hole} by {algorithm}")
                rows.append(_row(name, whole, hole, algorithm, rates[name], examples[name]))
    return Holes(tuple(rows), rates, examples)


def _row(name: str, whole: str, hole: str, algorithm: str, of_peak: float, examples: int) -> Row:
    before, after = (
        Setting(
            model=model(name),
            mesh=mesh,
            batch=examples * len(mesh.live),
            of_peak=of_peak,
            algorithm=algorithm,
            shard_update=True,
            simulated=True,
        )
        for mesh in (Mesh.parse(whole), Mesh.parse(hole))
    )
    hidden = (step(replace(setting, hide=True)) for setting in (before, after))
    return Row(name, whole, hole, algorithm, before.chips, after.chips, step(before), step(after), *hidden)
